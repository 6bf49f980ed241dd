from __future__ import annotations

from pathlib import Path

import pytest

from daemons.engine.native import __main__ as program
from daemons.engine.native import build as builds


def test_what_is_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there.so"
    there.touch()
    monkeypatch.setattr(program, "library_path", lambda: there)
    monkeypatch.setattr(program, "build", lambda: pytest.fail("built again"))
    assert program.main() == 0


def test_a_host_without_a_compiler_hears_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "library_path", lambda: tmp_path / "absent.so")
    monkeypatch.setattr(builds, "COMPILERS", ("no-such-compiler",))
    assert program.main() == 1
    assert "hint: without the kernels torch is used" in capsys.readouterr().err

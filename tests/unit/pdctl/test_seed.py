"""From a wheel to a host that serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pdctl import seed


def test_a_module_knows_the_wheel_that_it_is_in() -> None:
    wheel = Path("/w/pd-1-py3-none-any.whl")
    assert seed.wheel_of(f"{wheel}/pdctl/seed.py") == wheel
    assert seed.wheel_of("/checkout/pdctl/seed.py") is None


def test_the_environment_is_made_once(tmp_path: Path) -> None:
    wheel = Path("/w/pd.whl")
    make, install = seed.commands(tmp_path, wheel, "cpu", "python3")
    assert make == ["python3", "-m", "venv", str(tmp_path)]
    assert install[-1] == "/w/pd.whl[cpu]"
    (tmp_path / "pyvenv.cfg").write_text("")
    assert seed.commands(tmp_path, wheel, "cpu", "python3") == [install]


def test_it_needs_nothing_but_the_standard_library() -> None:
    foreign = ("typer", "msgspec", "yaml")
    code = f"import sys, pdctl.seed; print([n for n in {foreign} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_a_wheel_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert seed.main([]) == 1
    assert "hint: --wheel FILE" in capsys.readouterr().err


def test_a_command_that_fails_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "pd.whl"
    wheel.write_bytes(b"")
    prefix = tmp_path / "venv"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("")
    (prefix / "bin/python").symlink_to("/bin/false")
    assert seed.main(["--wheel", str(wheel), "--prefix", str(prefix)]) == 1
    assert "seed: failed: " in capfd.readouterr().err


def test_flags_that_are_not_its_own_are_those_of_install(tmp_path: Path) -> None:
    wheel, prefix, log = tmp_path / "pd.whl", tmp_path / "venv", tmp_path / "log"
    wheel.write_bytes(b"")
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("")
    (prefix / "bin/python").symlink_to("/bin/true")
    (prefix / "bin/pdctl").write_text(f'#!/bin/sh\necho "$@" >{log}\n')
    (prefix / "bin/pdctl").chmod(0o755)
    arguments = ["--wheel", str(wheel), "--prefix", str(prefix), "--config", "c.yaml", "--yes"]
    assert seed.main(arguments) == 0
    assert log.read_text() == f"install --prefix {prefix} --config c.yaml --yes\n"

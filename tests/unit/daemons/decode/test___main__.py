from __future__ import annotations

from pathlib import Path

import pytest

from daemons.decode import __main__ as main_module
from daemons.decode import service
from daemons.front import program
from daemons.protocol.topology import Role
from daemons.runtime.worker import Flags
from tests.support.checkpoints import checkpoint


def arguments(folder: Path, settings: str = "{port: 8101}") -> list[str]:
    file = folder / "cluster.yaml"
    file.write_text(f"name: t\nmodel: {checkpoint('llama')}\ndecode: {{x0: {settings}}}\n")
    return ["--config", str(file), "--instance", "x0"]


def test_without_a_link_the_front_is_run_with_the_instances_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Role, program.Face]] = []

    def run_front(flags: Flags, role: Role, face: program.Face) -> int:
        seen.append((role, face))
        return 7

    monkeypatch.setattr(program, "run_front", run_front)
    assert main_module.main(arguments(tmp_path)) == 7
    ((role, face),) = seen
    assert role is Role.DECODE
    assert (face.host, face.port) == ("local", 8101)


def test_with_a_link_the_rank_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "run_rank", lambda flags: flags.epoch)
    argv = [*arguments(tmp_path), "--rank", "0", "--epoch", "77", "--link", "ipc:///x"]
    assert main_module.main(argv) == 77


def test_a_setting_that_nobody_knows_is_exit_78_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(arguments(tmp_path, "{colour: red}")) == 78
    assert "colour" in capsys.readouterr().err

"""Words that the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from daemons.protocol.story import RoomRow
from pdctl import completion, target
from tests.support.fake_fleet import Fleet


@pytest.fixture(autouse=True)
def found(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    known = target.find(fleet.config)
    monkeypatch.setattr("pdctl.target.find", lambda _: known)


def test_names_of_the_file_are_completed() -> None:
    assert completion.names("") == ["bootstrap", "p0", "d0", "lb"]
    assert completion.names("p") == ["p0"]


def test_recent_rooms_are_completed(fleet: Fleet) -> None:
    rows = [
        RoomRow(room, 1, "done", 1.0, "", 1, 1) for room in (0x12345678000000, 0x1F000000000000)
    ]
    for daemon in (fleet.p0, fleet.lb):
        daemon.routes["/rooms"] = 200, {"rooms": msgspec.to_builtins(rows)}
    assert completion.rooms("1") == ["12345678", "1f000000"]
    assert completion.rooms("12") == ["12345678"]


def test_a_completion_that_fails_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(_: object) -> None:
        raise OSError

    monkeypatch.setattr("pdctl.target.find", breaks)
    assert completion.names("") == completion.rooms("") == []
    assert capsys.readouterr() == ("", "")


def test_a_shell_gets_the_names_of_the_file_that_its_line_names(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    fleet.config.write_text(fleet.config.read_text().replace("d0", "elsewhere"))
    words = f"pdctl drain -c {fleet.config} "
    environment = {
        **os.environ,
        "_PDCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"{words}e",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pdctl"], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["elsewhere"], done.stderr

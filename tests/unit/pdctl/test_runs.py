"""What an up leaves on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pdctl.errors import CommandError
from pdctl.processes import process_of
from pdctl.runs import (
    Child,
    Run,
    log_path,
    make_run_directory,
    read_run,
    run_directory,
    runs,
    state_directory,
    write_run,
)


def a_run(**more: object) -> Run:
    own = process_of(os.getpid())
    assert own is not None
    facts = {
        "cluster": "c",
        "config": "c.yaml",
        "config_hash": "h",
        "host": "local",
        "supervisor_pid": own.pid,
        "supervisor_started": own.started,
        "began_s": 1.0,
        "children": [Child(instance="lb", role="lb")],
    }
    return Run(**{**facts, **more})  # type: ignore[arg-type]


def test_a_run_reads_back_as_it_was_written() -> None:
    directory = make_run_directory("c")
    write_run(directory, a_run())
    assert read_run(directory) == a_run()


def test_its_folder_is_for_this_user_only() -> None:
    directory = make_run_directory("c")
    write_run(directory, a_run())
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "run.json").stat().st_mode) == 0o600
    assert log_path("c", "p0").parent.is_dir()


def test_no_run_and_a_broken_one_are_none(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    (tmp_path / "run.json").write_text('{"cluster": 7}')
    assert read_run(tmp_path) is None


def test_a_run_is_up_while_its_supervisor_or_a_child_lives() -> None:
    own = process_of(os.getpid())
    assert own is not None
    gone = {"supervisor_pid": own.pid, "supervisor_started": own.started - 1}
    child = Child(instance="lb", role="lb", pid=own.pid, started=own.started)
    assert a_run().is_up
    assert not a_run(**gone).is_up
    assert a_run(**gone, children=[child]).is_up
    assert a_run(children=[child]).alive == [child]


def test_every_run_is_listed() -> None:
    for name in ("a", "b"):
        write_run(make_run_directory(name), a_run(cluster=name))
    assert [run.cluster for run in runs()] == ["a", "b"]


def test_a_name_cannot_leave_the_state_folder() -> None:
    assert run_directory("../../etc").parent == state_directory()
    assert run_directory("..").parent == state_directory()
    assert run_directory("..") != state_directory()


def test_a_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    assert state_directory() == Path.home() / ".local/state/pd"


def test_a_folder_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(CommandError, match="cannot make"):
        make_run_directory("c")


def test_a_child_is_found_by_name() -> None:
    run = a_run()
    assert run.child("lb") is run.children[0]
    assert run.child("p0") is None

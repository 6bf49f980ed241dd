"""Reading the cluster file again."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from daemons.cluster.load import ClusterFile, load
from daemons.runtime import systemd
from daemons.runtime.reload import Reload, differences

OLD = "name: c\nprefill: {p0: {rows: 8, timers: {drain_s: 5}}}\n"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    words: list[str] = []
    monkeypatch.setattr(systemd, "notify", lambda *said: words.extend(said))
    return words


def reloaded(
    tmp_path: Path, text: str
) -> tuple[list[ClusterFile], list[MutableMapping[str, Any]], Reload]:
    path = tmp_path / "c.yaml"
    path.write_text(OLD)
    applied: list[ClusterFile] = []

    def apply(file: ClusterFile) -> frozenset[str]:
        applied.append(file)
        return frozenset({"timers.drain_s"})

    reload = Reload(load(path), "p0", apply)
    path.write_text(text)
    with structlog.testing.capture_logs() as logs:
        reload()
    return applied, logs, reload


def test_what_is_in_force_and_what_waits_are_told_apart(tmp_path: Path, told: list[str]) -> None:
    new = OLD.replace("8", "9").replace("5", "6")
    applied, logs, reload = reloaded(tmp_path, new)
    assert [file.hash for file in applied] == [reload.file.hash]
    assert [(log["in_force"], log["at_restart"]) for log in logs] == [
        (["timers.drain_s"], ["rows"])
    ]
    assert (told[0], told[-1]) == ("RELOADING=1", "READY=1")


@pytest.mark.parametrize("text", ["name: [", "name: c\nprefill: {}\n"])
def test_a_bad_file_changes_nothing(text: str, tmp_path: Path, told: list[str]) -> None:
    applied, logs, reload = reloaded(tmp_path, text)
    assert applied == []
    assert [log["event"] for log in logs] == ["config.refused"]
    assert "p0" in reload.file.cluster.prefill
    assert told[-1] == "READY=1"


def test_settings_that_came_or_went_differ_too() -> None:
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    new = {"b": {"c": 2, "d": 4, "e": 5}, "f": {"g": 6}}
    assert list(differences(old, new)) == ["a", "b.d", "b.e", "f.g"]

"""Log files: last lines, new lines, lines for people."""

from __future__ import annotations

from pathlib import Path

from pdctl.logfiles import Follower, moment, pretty, tail

JSON = (
    '{"event": "room.closed", "room": "7f3a", "took_s": 0.2, "level": "info", '
    '"timestamp": "2026-01-02T03:04:05.678901Z", "instance": "p0", "role": "prefill"}'
)


def test_the_last_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n2\n3\n")
    assert tail(path, 2) == ["2", "3"]
    assert tail(path, 9) == ["1", "2", "3"]
    assert tail(path, 0) == []
    assert tail(tmp_path / "none.log", 5) == []


def test_a_json_line_is_columns_for_people() -> None:
    assert pretty(JSON) == "03:04:05.678 info    p0        room.closed  room=7f3a  took_s=0.2"
    assert moment(JSON) == "2026-01-02T03:04:05.678901Z"


def test_other_lines_stay_as_they_are() -> None:
    for line in ("Traceback", '{"no": "event"}', "{broken", "{}", ""):
        assert pretty(line) == line
        assert moment(line) == ""


def test_new_lines_are_followed_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")
    follower = Follower(path)
    assert list(follower.lines()) == []
    with path.open("a") as log:
        log.write("new\nha")
    assert list(follower.lines()) == ["new"]
    with path.open("a") as log:
        log.write("lf\n")
    assert list(follower.lines()) == ["half"]


def test_a_replaced_file_is_followed_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")
    follower = Follower(path)
    path.rename(tmp_path / "a.log.1")
    assert list(follower.lines()) == []
    path.write_text("new\n")
    assert list(follower.lines()) == ["new"]

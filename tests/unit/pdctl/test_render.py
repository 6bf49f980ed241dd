"""Tables, documents, and words for sizes."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from pdctl import render
from pdctl.errors import CommandError, Exit
from pdctl.render import Output, View, amount, confirm, duration, milliseconds, rate, show

VIEW = View(
    {"schema_version": 1, "rows": [{"name": "p0"}]},
    ("NAME", "STATE", "EPOCH"),
    [("p0", "ready", "7")],
    ("p0",),
    wide_only=("EPOCH",),
    above=[("HEALTH_OK", "green")],
    styles={"ready": "green"},
)


def test_a_table_leaves_wide_columns_out(capsys: pytest.CaptureFixture[str]) -> None:
    show(VIEW, Output.TABLE)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["HEALTH_OK"], ["NAME", "STATE"], ["p0", "ready"]]


def test_wide_has_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    show(VIEW, Output.WIDE)
    assert capsys.readouterr().out.splitlines()[1].split() == ["NAME", "STATE", "EPOCH"]


def test_wide_is_cut_nowhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "a-name-that-is-wider-than-any-terminal-of-forty-columns"
    show(View({}, ("NAME", "STATE"), [[long, "ready"]]), Output.WIDE)
    assert capsys.readouterr().out.splitlines()[1].split() == [long, "ready"]


def test_json_and_yaml_are_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    show(VIEW, Output.JSON)
    assert json.loads(capsys.readouterr().out) == VIEW.document
    show(VIEW, Output.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == VIEW.document


def test_json_of_a_watch_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(VIEW, Output.JSON, one_line=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == VIEW.document


def test_name_is_one_name_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(VIEW, Output.NAME)
    assert capsys.readouterr().out == "p0\n"


def test_what_is_no_terminal_gets_no_color_and_no_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")
    long = "x" * 500
    show(View({}, ("A", "B"), [(long, "ready")], styles={"ready": "green"}), Output.TABLE)
    out = capsys.readouterr().out
    assert long in out
    assert "\x1b" not in out


def test_clicolor_force_colors_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    show(VIEW, Output.TABLE)
    assert "\x1b[32m" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (42.9, "42s"),
        (190, "3m10s"),
        (1800, "30m"),
        (7300, "2h1m"),
        (40000, "11h"),
        (200000, "2d"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_sizes_are_binary_and_speeds_decimal() -> None:
    assert amount(402 << 20) == "402 MiB"
    assert amount(1536) == "1.5 KiB"
    assert amount(3 << 40) == "3.0 TiB"
    assert rate(3.1e9) == "3.1 GB/s"
    assert rate(5e12) == "5000.0 GB/s"
    assert rate(950) == "950 B/s"
    assert rate(None) == rate(0) == "-"
    assert milliseconds(0.812) == "812 ms"
    assert milliseconds(None) == "-"


def test_yes_is_not_asked() -> None:
    confirm("sure?", yes=True)


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(CommandError) as caught:
        confirm("sure?", yes=False)
    assert caught.value.code is Exit.USAGE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_a_yes_on_a_terminal_goes_on(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    confirm("sure?", yes=False)


@pytest.mark.parametrize("answer", ["\n", "no\n", ""])
def test_anything_else_changes_nothing(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(CommandError, match="nothing was changed"):
        confirm("sure?", yes=False)


def test_a_watch_goes_on_until_it_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(render.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        render.repeat(lambda: VIEW, Output.JSON, 0.5)
    assert slept == [0.5] * 3
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_what_is_drawn_over_leaves_nothing_of_an_older_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(View({}, ("A",), [["1"]]), Output.TABLE, over=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("\x1b[K") for line in lines)

"""Progress in words."""

from __future__ import annotations

import io
import sys

import pytest

from pdctl.ticker import Ticker, bar


def test_where_lines_stay_only_new_facts_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    with Ticker() as ticker:
        ticker.tell("2 rooms left", ", 9 s")
        ticker.tell("2 rooms left", ", 8 s")
        ticker.tell("1 room left", ", 7 s")
        ticker.whole("no room left")
    assert capsys.readouterr().err == "  2 rooms left, 9 s\n  1 room left, 7 s\n"


def test_on_a_terminal_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Ticker() as ticker:
        ticker.tell("2 rooms left", ", 9 s", 0.0)
        ticker.tell("1 room left", ", 8 s", 0.5)
        ticker.whole("no room left")
    drawn = terminal.getvalue()
    assert drawn.count("\n") == 1
    assert drawn.endswith(f"\r\x1b[K  {bar(1.0)}  no room left\n")


@pytest.mark.parametrize(("share", "full"), [(-1.0, 0), (0.5, 10), (2.0, 20)])
def test_a_bar_is_always_as_long(share: float, full: int) -> None:
    assert bar(share) == "█" * full + "░" * (20 - full)

"""``CAUSES.md`` says of every cause what the code does."""

from __future__ import annotations

from pathlib import Path

from daemons.protocol.causes import HTTP_STATUS, RETRY_IS_SENSIBLE, Cause

FILE = Path(__file__).parents[2] / "CAUSES.md"


def rows() -> dict[str, list[str]]:
    lines = [line for line in FILE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row for row in cells}


def test_every_cause_has_one_row_and_no_other_has() -> None:
    assert sorted(rows()) == sorted(cause.value for cause in Cause)


def test_status_and_retry_are_as_in_the_code() -> None:
    for cause in Cause:
        _, status, again, happened, _ = rows()[cause.value]
        assert int(status) == HTTP_STATUS[cause], cause
        assert (again == "yes") == (cause in RETRY_IS_SENSIBLE), cause
        assert happened

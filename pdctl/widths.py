"""How a table fits into a terminal: which columns stay, and how wide each is; pure.

First those columns go that may be spared, in their order. Then the widest ones are cut, so that
names and numbers stay whole while there is room for them at all.
"""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2  # between two columns
LEAST = 8  # a column is cut to no less, unless it was narrower


def natural(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width that each column wants."""
    return [
        max([len(name), *(len(row[at]) for row in rows)], default=0)
        for at, name in enumerate(columns)
    ]


def kept(
    columns: Sequence[str], wants: Sequence[int], spare: Sequence[str], width: int
) -> list[int]:
    """Return which columns stay, by index; ``spare`` are those that may go, the first one first."""
    stay = list(range(len(columns)))
    for name in spare:
        if _total([wants[at] for at in stay]) <= width:
            break
        stay = [at for at in stay if columns[at] != name]
    return stay


def cut(wants: Sequence[int], width: int) -> list[int]:
    """Return widths that fit, the widest ones cut first."""
    widths = list(wants)
    while _total(widths) > width:
        widest = max(range(len(widths)), key=lambda at: widths[at])
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(len(widths) - 1, 0)

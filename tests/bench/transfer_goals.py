"""What a transfer should reach, cell by cell, with the number that was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.transfer_ways import Planning

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        name: shape, rooms and pages.
        room_bytes: of one room.
        rates: GB/s of each way: median, and the quarters around it.
        planning: of the fastest of ours.
    """

    name: str
    room_bytes: int
    rates: dict[str, tuple[float, float, float]]
    planning: Planning

    def ratio(self, way: str, reference: str) -> float | None:
        """Return how much of a reference a way reaches; None where one was not measured."""
        if way not in self.rates or reference not in self.rates:
            return None
        return self.rates[way][0] / self.rates[reference][0]


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that lines should have, where they are concerned."""

    words: str
    least_bytes: int  # of a room
    bound: float
    value: Callable[[Line], float | None]
    is_ceiling: bool = False

    def verdict(self, lines: Sequence[Line]) -> str:
        """Return met or missed, how often, and the worst one by name."""
        found = [
            (value, line.name)
            for line in lines
            if line.room_bytes >= self.least_bytes and (value := self.value(line)) is not None
        ]
        if not found:
            return f"{'-':>8}  {self.words}: not measured"
        worst = max(found) if self.is_ceiling else min(found)
        met = [v for v, _ in found if (v <= self.bound if self.is_ceiling else v >= self.bound)]
        word = "met" if len(met) == len(found) else "missed"
        seen = f"{len(met)} of {len(found)}, worst {worst[0]:.3g} ({worst[1]})"
        return f"{word:>8}  {self.words}: {seen}"


GOALS = (
    Goal(
        "cma >= 0.7 of a memcpy in one piece, from 1 MiB a room on",
        MIB,
        0.7,
        lambda line: line.ratio("cma", "memcpy"),
    ),
    Goal(
        "cma >= 0.7 of a memcpy in the same pieces, from 1 MiB a room on",
        MIB,
        0.7,
        lambda line: line.ratio("cma", "copies"),
    ),
    Goal(
        "mooncake >= 0.95 of the engine called bare, merged",
        0,
        0.95,
        lambda line: line.ratio("mooncake", "merged"),
    ),
    Goal(
        "mooncake >= 0.90 of the engine called bare, merged",
        0,
        0.90,
        lambda line: line.ratio("mooncake", "merged"),
    ),
    Goal(
        "mooncake >= 1.5 x the engine called page by page",
        0,
        1.5,
        lambda line: line.ratio("mooncake", "naive"),
    ),
    Goal("planning <= 2 % of the transfer", 0, 0.02, lambda line: line.planning.share, True),
    Goal(
        "planning that the bytes wait for <= 2 % of a transfer that follows a forward",
        0,
        0.02,
        lambda line: line.planning.waited,
        True,
    ),
)

"""Open rooms that do not move: no line in their story for long, and no token between two looks.

Pure. A room that runs and makes tokens is slow at most, however old it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from daemons.protocol.story import RoomRow, Story


@dataclass(frozen=True, slots=True)
class Stuck:
    """One leg that does not move."""

    room: int
    attempt: int
    instance: str
    stage: str
    quiet_s: float  # since the last line of its story
    age_s: float
    peer: str
    because: str  # the last thing that happened

    @property
    def hint(self) -> str:
        """Return where to look."""
        return HINTS.get(self.stage, "pdctl trace room shows the whole of it").format(
            peer=self.peer or "the peer", instance=self.instance
        )


HINTS = {
    "bootstrap": "{peer} has not said where to write: pdctl logs {peer}",
    "waiting": "{instance} has no memory or no turn for it: pdctl top",
    "forward": "{instance} computes, or its engine stands still: pdctl logs {instance}",
    "inflight": "bytes to {peer} do not arrive: pdctl doctor",
    "prealloc": "{instance} has no free pages, or does not find {peer}: pdctl status -o wide",
    "transfer": "{peer} writes nothing: pdctl logs {peer}",
    "running": "{instance} makes no token: pdctl logs {instance}",
    "retracted": "{instance} has no memory to take it back: pdctl top",
}


def suspects(
    before: Mapping[str, Sequence[RoomRow]], after: Mapping[str, Sequence[RoomRow]], least_s: float
) -> Iterator[tuple[str, RoomRow]]:
    """Yield daemon and row of rooms that are old, open, and the same in two looks."""
    seen = {(name, row.room, row.attempt): row for name, rows in before.items() for row in rows}
    for name, rows in after.items():
        for row in rows:
            was = seen.get((name, row.room, row.attempt))
            is_open = row.stage not in ("done", "failed")
            if is_open and row.age_s >= least_s and was is not None and _is_same(was, row):
                yield name, row


def _is_same(was: RoomRow, now: RoomRow) -> bool:
    return (was.stage, was.output_tokens) == (now.stage, now.output_tokens)


def stuck(found: Iterable[tuple[str, RoomRow, Story, float]], least_s: float) -> list[Stuck]:
    """Return the suspects whose story has been quiet for ``least_s``, the quietest first.

    Args:
        found: daemon, row, that daemon's story, and what time it is by the daemon's clock.
        least_s: seconds without a line.
    """
    quiet = [
        Stuck(
            row.room,
            row.attempt,
            name,
            row.stage,
            now_s - story.lines[-1].at_s,
            row.age_s,
            row.peer or story.peer,
            story.lines[-1].because,
        )
        for name, row, story, now_s in found
        if story.open and story.lines
    ]
    kept = [one for one in quiet if one.quiet_s >= least_s]
    return sorted(kept, key=lambda one: -one.quiet_s)

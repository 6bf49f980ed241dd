"""The rooms that took longest, of those that pd-lb remembers; merged like any trace.

Only pd-lb's stories are read to choose, then every daemon's of the chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from daemons.protocol.story import RoomRow, Story
from pdctl.client import together
from pdctl.merge import Waterfall, attempts, waterfall
from pdctl.places import Place
from pdctl.survey import stories_at, stories_of


def lasted_s(story: Story) -> float:
    """Return how long a room was at a daemon."""
    return story.lines[-1].at_s - story.lines[0].at_s if story.lines else 0.0


def chosen(stories: Sequence[Story], count: int) -> list[Story]:
    """Return the ended rooms that took longest, the slowest first."""
    ended = [story for story in stories if story.lines and not story.open]
    return sorted(ended, key=lambda story: -lasted_s(story))[:count]


def slowest(
    known: dict[str, Place], rows: Sequence[RoomRow], count: int, now_s: float
) -> list[Waterfall]:
    """Return the waterfalls of the slowest ended rooms, asked for from every daemon.

    Args:
        known: every daemon's place.
        rows: pd-lb's list of rooms.
        count: how many.
        now_s: Unix time.
    """
    lb = known["lb"]

    def asking(room: int) -> Callable[[], list[Story]]:
        return lambda: stories_at(lb, room)

    rooms = {str(row.room): row.room for row in rows if row.stage in ("done", "failed")}
    told = together({name: asking(room) for name, room in rooms.items()})
    stories = [story for said in told.values() if isinstance(said, list) for story in said]
    found = []
    for one in chosen(stories, count):
        everybodys, _ = stories_of(known, one.room)
        tries: Mapping[int, list[Story]] = attempts(everybodys)
        if one.attempt in tries:
            found.append(waterfall(tries[one.attempt], now_s))
    return found

"""``pdctl maybe-stuck``: open rooms that have not moved for long, and where to look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import Output, View, duration, say, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemons.protocol.story import Story
    from pdctl.places import Place
    from pdctl.stuck import Stuck

SCHEMA_VERSION = 1
COLUMNS = ("ROOM", "TRY", "WHERE", "QUIET", "AGE", "PEER", "LAST", "HINT")
APART_S = 1.0  # between the two looks


def maybe_stuck(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    after: Annotated[
        float, typer.Option(help="Seconds without any move that are too many.", min=0)
    ] = 10.0,
) -> int:
    """List rooms that do not move; exit code 4 when there are any, so that a probe can use it.

    Example: pdctl maybe-stuck --after 30
    """
    from daemons.protocol.ids import room_hex, room_short
    from pdctl import target

    cluster = target.find(config).cluster
    found = _look(cluster, after)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "maybe-stuck",
        "cluster": cluster.name,
        "after_s": after,
        "rooms": [
            {
                "room": room_hex(one.room),
                "attempt": one.attempt,
                "instance": one.instance,
                "stage": one.stage,
                "quiet_s": one.quiet_s,
                "age_s": one.age_s,
                "peer": one.peer,
                "last": one.because,
                "hint": one.hint,
            }
            for one in found
        ],
    }
    rows = [
        [
            room_short(one.room),
            str(one.attempt),
            f"{one.instance}:{one.stage}",
            duration(one.quiet_s),
            duration(one.age_s),
            one.peer or "-",
            one.because,
            one.hint,
        ]
        for one in found
    ]
    show(
        View(
            document,
            COLUMNS,
            rows,
            [room_hex(one.room) for one in found],
            spare=("TRY", "AGE"),
            folded=("LAST", "HINT"),
        ),
        output,
    )
    if not found:
        say(f"no room has stood still for {after:g} s")
    return Exit.DEGRADED if found else Exit.OK


def _look(cluster: object, after_s: float) -> list[Stuck]:
    from daemons.cluster.model import Cluster
    from daemons.protocol.ids import RoomKey
    from pdctl.client import together
    from pdctl.stuck import stuck, suspects
    from pdctl.survey import located, rooms_of, stories_at

    assert isinstance(cluster, Cluster)
    known = located(cluster)
    before, _ = rooms_of(known)
    time.sleep(APART_S)
    rows, troubles = rooms_of(known)
    if not rows:
        words = "; ".join(f"{name}: {why}" for name, why in troubles.items())
        raise CommandError(f"nobody answers: {words}", "pdctl status", code=Exit.UNREACHABLE)
    for name, why in troubles.items():
        say(f"without the rooms of {name}: {why}")
    odd = list(suspects(before, rows, after_s))

    def asking(place: Place, room: int) -> Callable[[], list[Story]]:
        return lambda: stories_at(place, room)

    asked = {f"{name} {row.room}": asking(known[name], row.room) for name, row in odd}
    told = together(asked)
    # A room's age and the first line of its story tell what time it is there.
    pairs = []
    for name, row in odd:
        said = told[f"{name} {row.room}"]
        for story in said if isinstance(said, list) else []:
            if RoomKey(story.room, story.attempt) == RoomKey(row.room, row.attempt) and story.lines:
                pairs.append((name, row, story, story.lines[0].at_s + row.age_s))
    return stuck(pairs, after_s)

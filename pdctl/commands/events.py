"""``pdctl events``: who came, drained and went, and which rooms failed, by time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import Output, View, say, show

if TYPE_CHECKING:
    from pdctl.events import Event
    from pdctl.target import Target

SCHEMA_VERSION = 1
COLUMNS = ("TIME", "KIND", "SUBJECT", "WHAT")
STYLES = {"lost": "bold red", "failed": "red", "refused": "yellow", "replaced": "yellow"}
FOLLOW_S = 1.0


def events(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", min=1)] = 50,
    kind: Annotated[
        str | None, typer.Option(help="Only this kind: failed, lost, draining, new, …")
    ] = None,
) -> int:
    """Show what happened lately: joins, drains, losses, failed rooms with their cause.

    Example: pdctl events --kind failed
    """
    from pdctl import target

    found = target.find(config)
    told = look(found, kind, limit)
    seen: set[str] = set()
    while True:
        show(view(found, told), output, one_line=follow)
        if not follow:
            return Exit.OK
        seen |= {event.mark for event in told}
        told = []
        while not told:
            time.sleep(FOLLOW_S)
            told = [event for event in look(found, kind, limit) if event.mark not in seen]


def look(found: Target, kind: str | None, limit: int) -> list[Event]:
    """Return the last events of a kind, the oldest first; raises CommandError if nobody answers."""
    from pdctl.client import Refused, Unreachable
    from pdctl.events import merged, of_fleet, of_rooms
    from pdctl.merge import summaries
    from pdctl.survey import fleet_events, located, rooms_of

    known = located(found.cluster)
    told: list[Event] = []
    silent: dict[str, str] = {}
    try:
        listed, behind_s = fleet_events(known["bootstrap"])
        told += of_fleet(listed, behind_s)
    except (Unreachable, Refused) as trouble:
        silent["bootstrap"] = str(trouble)
    rows, troubles = rooms_of(known)
    silent |= troubles
    if not rows and "bootstrap" in silent:
        words = "; ".join(f"{name}: {why}" for name, why in silent.items())
        raise CommandError(f"nobody answers: {words}", "pdctl status", code=Exit.UNREACHABLE)
    for name, why in silent.items():
        say(f"without the events of {name}: {why}")
    told += of_rooms(summaries(rows), time.time())
    return merged((event for event in told if kind in (None, event.kind)), limit)


def view(found: Target, told: list[Event]) -> View:
    """Return events in all their forms."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "events",
        "cluster": found.cluster.name,
        "events": [
            {
                "at_s": event.at_s,
                "kind": event.kind,
                "subject": event.subject,
                "words": event.words,
                "cause": event.cause or None,
            }
            for event in told
        ],
    }
    rows = [
        [
            time.strftime("%H:%M:%S", time.localtime(event.at_s)),
            event.kind,
            event.short,
            event.words,
        ]
        for event in told
    ]
    return View(
        document, COLUMNS, rows, [event.subject for event in told], folded=("WHAT",), styles=STYLES
    )

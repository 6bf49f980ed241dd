"""``pdctl trace``: where a request's time went, merged from lb, prefill and decode."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import completion, options
from pdctl.errors import CommandError, Exit
from pdctl.forms import Export
from pdctl.render import Output, View, console, milliseconds, say, show

if TYPE_CHECKING:
    from pdctl.merge import Waterfall
    from pdctl.places import Place

SCHEMA_VERSION = 1
LISTED = 10  # candidates shown for an ambiguous prefix

SLOW_COLUMNS = (
    "ROOM",
    "TRY",
    "PAIR",
    "OUTCOME",
    "TTFT",
    "TOTAL",
    "PROMPT",
    "OUTPUT",
    "LONGEST PART",
)

app = typer.Typer()


@app.callback(invoke_without_command=True)
def trace(
    context: typer.Context,
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    slowest: Annotated[
        int | None, typer.Option(help="List so many of the slowest ended rooms.", min=1, max=100)
    ] = None,
) -> int:
    """Explain one request (trace room), or list the slowest.

    Example: pdctl trace --slowest 5
    """
    if context.invoked_subcommand is not None:
        if slowest is not None:
            raise CommandError(
                "--slowest lists rooms, trace room explains one",
                "pdctl trace --slowest 5",
                code=Exit.USAGE,
            )
        return Exit.OK
    if slowest is None:
        raise CommandError(
            "which request?", "pdctl trace room 7f3a, or pdctl trace --slowest 5", code=Exit.USAGE
        )
    return _slowest(config, output, slowest)


def _slowest(config: options.Config, output: Output, count: int) -> int:
    from daemons.protocol.ids import room_hex, room_short
    from pdctl import target
    from pdctl.slowest import slowest
    from pdctl.survey import located, rooms_of

    known = located(target.find(config).cluster)
    rows, troubles = rooms_of(known)
    if "lb" not in rows:
        raise CommandError(
            f"pd-lb tells no rooms: {troubles.get('lb', '?')}",
            "pdctl status",
            code=Exit.UNREACHABLE,
        )
    found = slowest(known, rows["lb"], count, time.time())
    table = [
        [
            room_short(seen.room),
            str(seen.attempt),
            f"{seen.prefill} -> {seen.decode}" if seen.prefill else f"{seen.decode} alone",
            seen.outcome,
            milliseconds(seen.ttft_s),
            milliseconds(seen.total_s),
            str(seen.prompt_tokens),
            str(seen.output_tokens),
            _longest(seen),
        ]
        for seen in found
    ]
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "slowest",
        "rooms": [_document(seen) for seen in found],
    }
    names = [room_hex(seen.room) for seen in found]
    show(
        View(
            document, SLOW_COLUMNS, table, names, spare=("TRY", "OUTPUT"), styles={"failed": "red"}
        ),
        output,
    )
    return Exit.OK


def _longest(seen: Waterfall) -> str:
    """Return the longest part; of a room whose worker forgot it (a restart) nobody can say it."""
    told = {leg.instance for leg in seen.legs}
    missing = [name for name in (seen.prefill, seen.decode) if name and name not in told]
    if missing:
        return f"? ({', '.join(missing)} forgot it)"
    return f"{seen.longest.name} {milliseconds(seen.longest.length_s)}" if seen.longest else "-"


@app.command("room")
def room(
    prefix: Annotated[
        str,
        typer.Argument(
            help="The room, or the beginning of it, as pdctl rooms shows it.",
            autocompletion=completion.rooms,
        ),
    ],
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    attempt: Annotated[
        int | None, typer.Option(help="This attempt instead of the last one.", min=1)
    ] = None,
    export: Annotated[
        Export | None,
        typer.Option(help="Print it for https://ui.perfetto.dev, or as one HTML page."),
    ] = None,
) -> int:
    """Show one room's way through the daemons, stage by stage.

    Example: pdctl trace room 7f3a --export html > room.html
    """
    from daemons.protocol.ids import room_hex
    from pdctl import target
    from pdctl.draw import waterfall_lines
    from pdctl.export import exported
    from pdctl.merge import attempts, waterfall
    from pdctl.survey import located, stories_of, workers_of
    from pdctl.usual import verdict

    known = located(target.find(config).cluster)
    number = resolve(prefix, known)
    stories, troubles = stories_of(known, number)
    for name, why in troubles.items():
        say(f"without the story of {name}: {why}")
    tries = attempts(stories)
    if not tries:
        raise CommandError(
            f"nobody knows room {prefix}", "pdctl rooms lists them", code=Exit.NOT_FOUND
        )
    if attempt is not None and attempt not in tries:
        raise CommandError(
            f"room {prefix} has no attempt {attempt}",
            f"it has: {', '.join(map(str, tries))}",
            code=Exit.NOT_FOUND,
        )
    seen = waterfall(tries[attempt or max(tries)], time.time())
    if export is not None:
        print(exported(seen, export))
        return Exit.OK
    lines = list(waterfall_lines(seen, console().width))
    if seen.outcome == "ok" and (words := verdict(seen, workers_of(known))):
        lines.append((words, ""))
    view = View(_document(seen), names=[room_hex(seen.room)], above=lines)
    show(view, output)
    return Exit.OK


def resolve(prefix: str, known: dict[str, Place]) -> int:
    """Return the room that a prefix of its hexadecimal form means.

    Raises:
        CommandError: no or several recent rooms begin so, or nobody answers.
    """
    from daemons.protocol.ids import ROOM_HEX_DIGITS, room_hex
    from pdctl.survey import rooms_of

    wanted = prefix.lower()
    if not re.fullmatch(r"[0-9a-f]{1,14}", wanted):
        raise CommandError(
            f"{prefix} is no room: up to {ROOM_HEX_DIGITS} hexadecimal digits",
            "pdctl rooms lists them",
            code=Exit.USAGE,
        )
    if len(wanted) == ROOM_HEX_DIGITS:
        return int(wanted, 16)
    told, troubles = rooms_of(known)
    if not told:
        words = "; ".join(f"{name}: {why}" for name, why in troubles.items())
        raise CommandError(f"nobody answers: {words}", "pdctl status", code=Exit.UNREACHABLE)
    rooms = {row.room for rows in told.values() for row in rows}
    found = sorted(number for number in rooms if room_hex(number).startswith(wanted))
    if not found:
        raise CommandError(
            f"no recent room begins with {prefix}",
            "pdctl rooms lists them; older ones are found by all their digits",
            code=Exit.NOT_FOUND,
        )
    if len(found) > 1:
        names = ", ".join(room_hex(number) for number in found[:LISTED])
        raise CommandError(
            f"{len(found)} rooms begin with {prefix}: {names}",
            "give more digits",
            code=Exit.USAGE,
        )
    return found[0]


def _document(seen: Waterfall) -> dict[str, Any]:
    import msgspec

    from daemons.protocol.ids import room_hex

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace",
        "room": room_hex(seen.room),
        "attempt": seen.attempt,
        "outcome": seen.outcome,
        "prefill": seen.prefill,
        "decode": seen.decode,
        "prompt_tokens": seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "output_tokens": seen.output_tokens,
        "total_s": seen.total_s,
        "ttft_s": seen.ttft_s,
        "first_cause": msgspec.to_builtins(seen.first_cause),
        "first_leg": seen.first_leg or None,
        "spans": [
            {
                "name": span.name,
                "instance": span.instance,
                "begin_s": span.begin_s,
                "end_s": span.end_s,
                "open": span.is_open,
                "note": span.note,
            }
            for span in seen.spans
        ],
        "legs": [
            {
                "instance": leg.instance,
                "role": leg.role,
                "at_s": leg.at_s,
                "stage": leg.stage,
                "because": leg.because,
                "open": leg.is_open,
                "failure": msgspec.to_builtins(leg.failure),
            }
            for leg in seen.legs
        ],
        "remarks": list(seen.remarks),
    }

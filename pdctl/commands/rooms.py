"""``pdctl rooms``: open rooms and the last ended ones, all daemons together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import Output, View, duration, repeat, say, show

if TYPE_CHECKING:
    from pdctl.merge import Summary
    from pdctl.target import Target

SCHEMA_VERSION = 1
COLUMNS = ("ROOM", "TRY", "STATE", "STAGES", "AGE", "PROMPT", "OUTPUT", "FAILURE")
STYLES = {"failed": "red", "open": "cyan"}


def rooms(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    watch: options.Watch = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only rooms that failed.")] = False,
    stage: Annotated[
        str | None, typer.Option(help="Only rooms that are in this stage somewhere.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", min=1)] = 50,
) -> int:
    """List open rooms and the last ended ones.

    Example: pdctl rooms --failed -o json
    """
    from pdctl import target

    found = target.find(config)

    def wanted(one: Summary) -> bool:
        return (not failed or one.state == "failed") and (
            stage is None or stage in one.stages.values()
        )

    def look() -> View:
        return _look(found, wanted, limit)

    if watch is not None:
        repeat(look, output, watch)
    view = look()
    show(view, output)
    if not view.rows:
        say("no room of that kind is remembered" if failed or stage else "no rooms yet")
    return Exit.OK


def _look(found: Target, wanted: Any, limit: int) -> View:
    from daemons.protocol.ids import room_hex, room_short
    from pdctl.merge import summaries
    from pdctl.survey import located, rooms_of

    told, troubles = rooms_of(located(found.cluster))
    if not told:
        words = "; ".join(f"{name}: {why}" for name, why in troubles.items())
        raise CommandError(
            f"no daemon tells its rooms: {words}", "pdctl status", code=Exit.UNREACHABLE
        )
    for name, why in troubles.items():
        say(f"without the rooms of {name}: {why}")
    kept = [one for one in summaries(told) if wanted(one)][:limit]
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "rooms",
        "cluster": found.cluster.name,
        "silent": sorted(troubles),
        "rooms": [_facts(one, room_hex(one.room)) for one in kept],
    }
    return View(
        document,
        COLUMNS,
        [_row(one, room_short(one.room)) for one in kept],
        [room_hex(one.room) for one in kept],
        spare=("TRY", "PROMPT", "OUTPUT"),
        folded=("STAGES", "FAILURE"),
        styles=STYLES,
    )


def _facts(one: Summary, room: str) -> dict[str, Any]:
    failure = one.failure
    return {
        "room": room,
        "attempt": one.attempt,
        "state": one.state,
        "stages": one.stages,
        "age_s": one.age_s,
        "prompt_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        "failure": None
        if failure is None
        else {
            "cause": failure.cause.value,
            "stage": failure.stage,
            "peer": failure.peer,
            "detail": failure.detail,
        },
    }


def _row(one: Summary, room: str) -> list[str]:
    return [
        room,
        str(one.attempt),
        one.state,
        " ".join(f"{instance}:{stage}" for instance, stage in one.stages.items()),
        duration(one.age_s) if one.age_s >= 10 else f"{one.age_s:.1f}s",
        str(one.prompt_tokens),
        str(one.output_tokens),
        str(one.failure) if one.failure else "-",
    ]

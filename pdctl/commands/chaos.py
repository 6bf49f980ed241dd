"""``pdctl chaos``: faults put into one worker on purpose, for tests and staging clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import say

if TYPE_CHECKING:
    from pdctl.places import Place


def chaos(
    name: options.Instance,
    fault: Annotated[
        str | None, typer.Argument(help="What shall go wrong, such as write.freeze; --list shows.")
    ] = None,
    config: options.Config = None,
    room: Annotated[str, typer.Option(help="Only this room (hexadecimal).")] = "",
    times: Annotated[int, typer.Option(help="How often; 0: until --clear.", min=0)] = 1,
    seconds: Annotated[float, typer.Option(help="For how long, where that matters.", min=0)] = 0,
    amount: Annotated[float, typer.Option(help="How many, or how much.", min=0)] = 0,
    message: Annotated[str, typer.Option(help="Only messages of this type.")] = "",
    show: Annotated[bool, typer.Option("--list", help="Show faults and what is armed.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Take every fault out.")] = False,
) -> int:
    """Let a worker fail on purpose. Refused unless the cluster file says chaos: true.

    Example: pdctl chaos p0 write.freeze --times 1
    """
    from daemons.protocol.chaos import Fault
    from pdctl import target
    from pdctl.commands.drain import worker

    if (fault is not None) + show + clear != 1:
        raise CommandError(
            "one of a fault, --list and --clear is needed",
            f"faults: {', '.join(Fault)}",
            code=Exit.USAGE,
        )
    cluster = target.find(config).cluster
    place = worker(cluster, name)
    if not cluster.chaos:
        raise CommandError(
            "this cluster allows no faults",
            "chaos: true in the cluster file allows them; never where users are served",
            code=Exit.CONFLICT,
        )
    if fault is not None:
        order = _order(fault, room, times, seconds, amount, message)
        _told(place, _ask("POST", place, order))
    elif clear:
        _told(place, _ask("DELETE", place))
    else:
        say(f"faults: {', '.join(Fault)}")
        _told(place, _ask("GET", place))
    return Exit.OK


def _order(
    fault: str, room: str, times: int, seconds: float, amount: float, message: str
) -> dict[str, Any]:
    """Return the order as the daemon takes it; what is wrong with it is told here."""
    import msgspec

    from daemons.protocol.chaos import Fault, FaultOrder, flaw

    if fault not in tuple(Fault):
        raise CommandError(
            f"no fault {fault}", f"there are: {', '.join(Fault)}", code=Exit.NOT_FOUND
        )
    try:
        number = int(room, 16) if room else 0
    except ValueError as error:
        raise CommandError(f"{room} is no room", "pdctl rooms", code=Exit.USAGE) from error
    order = FaultOrder(Fault(fault), times, number, message, seconds, amount)
    if wrong := flaw(order):
        raise CommandError(wrong, "pdctl chaos --help", code=Exit.USAGE)
    body: dict[str, Any] = msgspec.to_builtins(order)
    return body


def _ask(method: str, place: Place, body: object | None = None) -> Callable[[], Any]:
    from pdctl.client import Refused, call, message_of

    def ask() -> Any:
        answer = call(method, f"{place.url}/chaos", body, token=place.token)
        if answer.status != 200:
            raise Refused(answer.status, message_of(answer.body))
        return answer.json()

    return ask


def _told(place: Place, ask: Callable[[], Any]) -> None:
    from pdctl.client import Refused, Unreachable

    try:
        armed = ask()["armed"]
    except Unreachable as trouble:
        raise CommandError(
            f"{place.instance} does not answer: {trouble}", "pdctl status", code=Exit.UNREACHABLE
        ) from trouble
    except Refused as refused:
        code = Exit.CONFLICT if refused.status in (403, 409) else Exit.FAILED
        raise CommandError(f"{place.instance} refuses: {refused}", "", code=code) from refused
    say(f"{place.instance}: " + ("; ".join(armed) or "no fault is armed"))

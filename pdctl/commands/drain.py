"""``pdctl drain`` and ``undrain``: a worker out of routing, its rooms finished; and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import confirm, say
from pdctl.ticker import Ticker

if TYPE_CHECKING:
    from pdctl.places import Place

LOOK_S = 0.5
SWITCH_S = 30.0  # the answer comes when others have had time to hear of it
END_S = 15.0  # rooms that are ended still wait for a step or a write that is under way


def drain(
    name: options.Instance,
    config: options.Config = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds to wait for its rooms to finish.", min=0)
    ] = 60.0,
    force: Annotated[
        bool, typer.Option("--force", help="After the deadline end the rooms that are left.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return at once, do not wait for its rooms.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen.")] = False,
    yes: options.Yes = False,
) -> int:
    """Take a worker out of routing and wait until its rooms have finished.

    Example: pdctl drain d0 --deadline 120 --force
    """
    from pdctl import target

    found = target.find(config)
    place = worker(found.cluster, name)
    rooms = rooms_left(place)
    fate = f"are ended after {deadline:.0f} s" if force else "finish"
    words = f"{name} takes no more rooms; {rooms} open ones {fate}"
    if dry_run:
        say(f"{words}{_last_of_its_role(found.cluster, place)}")
        return Exit.OK
    confirm(f"{words}{_last_of_its_role(found.cluster, place)}. Drain it?", yes=yes)
    switch(place, on=True)
    if detach:
        say(f"{name} is draining; pdctl status shows it")
        return Exit.OK
    if force:
        _wait_or_end(place, deadline)
    else:
        wait(place, deadline)
    say(f"{name} is drained; pdctl undrain {name} puts it back")
    return Exit.OK


def undrain(name: options.Instance, config: options.Config = None) -> int:
    """Let a drained worker take rooms again.

    Example: pdctl undrain d0
    """
    from pdctl import target

    place = worker(target.find(config).cluster, name)
    switch(place, on=False)
    say(f"{name} takes rooms again")
    return Exit.OK


def switch(place: Place, *, on: bool, force: bool = False) -> None:
    """Tell a worker to drain, or to stop draining; ``force`` ends the rooms that are left."""
    from pdctl.client import Refused, Unreachable, post_json

    body = {"on": on, "force": True} if force else {"on": on}
    try:
        post_json(f"{place.url}/drain", body, token=place.token, timeout_s=SWITCH_S)
    except Unreachable as trouble:
        raise _unreachable(place, trouble) from trouble
    except Refused as refused:
        raise CommandError(
            f"{place.instance} refuses: {refused}", f"pdctl logs {place.instance}"
        ) from refused


def rooms_left(place: Place) -> int:
    """Return how many rooms a worker has."""
    from daemons.protocol.story import WorkerStatus
    from pdctl.client import Refused, Unreachable
    from pdctl.survey import get_as

    try:
        return sum(get_as(place, "/status", WorkerStatus).rooms.values())
    except (Unreachable, Refused) as trouble:
        raise _unreachable(place, trouble) from trouble


def wait(place: Place, deadline_s: float) -> None:
    """Wait until a draining worker has no room left; raises CommandError at the deadline."""
    with Ticker() as ticker:
        _count_down(place, deadline_s, ticker)


def _count_down(place: Place, deadline_s: float, ticker: Ticker) -> None:
    end = time.monotonic() + deadline_s
    most = 1
    while (left := rooms_left(place)) > 0:
        most = max(most, left)
        rooms = "1 room" if left == 1 else f"{left} rooms"
        passing = f", {max(end - time.monotonic(), 0):.0f} s to the deadline"
        ticker.tell(f"{place.instance}: {rooms} left", passing, 1 - left / most)
        if time.monotonic() >= end:
            raise CommandError(
                f"{place.instance} still has {left} rooms after {deadline_s:.0f} s",
                f"it stays draining; wait again, or pdctl undrain {place.instance}",
                code=Exit.TIMEOUT,
            )
        time.sleep(LOOK_S)
    ticker.whole(f"{place.instance}: no room left")


def _wait_or_end(place: Place, deadline_s: float) -> None:
    try:
        wait(place, deadline_s)
    except CommandError as late:
        if late.code is not Exit.TIMEOUT:
            raise
        say(f"  the deadline is over; {rooms_left(place)} rooms are ended")
        switch(place, on=True, force=True)
        wait(place, END_S)


def worker(cluster: object, name: str) -> Place:
    """Return the place of a worker; raises CommandError when it is none, or nowhere."""
    from daemons.cluster.model import Cluster
    from pdctl.places import WORKERS
    from pdctl.survey import located

    assert isinstance(cluster, Cluster)
    known = located(cluster)
    place = known.get(name)
    if place is None:
        raise CommandError(
            f"no daemon {name} in the cluster file", "pdctl status lists them", code=Exit.NOT_FOUND
        )
    if place.role not in WORKERS:
        raise CommandError(
            f"{name} is no worker", "only a prefill or a decode can be drained", code=Exit.USAGE
        )
    if not place.url:
        raise CommandError(
            f"{name} is not in the phone book", "pdctl status", code=Exit.UNREACHABLE
        )
    return place


def _last_of_its_role(cluster: object, place: Place) -> str:
    from daemons.cluster.model import Cluster
    from daemons.protocol.topology import State
    from pdctl.survey import located, phone_book

    assert isinstance(cluster, Cluster)
    listed, _ = phone_book(located(cluster)["bootstrap"])
    others = [
        info.instance
        for info in listed
        if info.role is place.role and info.state is State.READY and info.instance != place.instance
    ]
    return "" if others else f"; it is the only ready {place.role.value}: requests will get 503"


def _unreachable(place: Place, trouble: Exception) -> CommandError:
    return CommandError(
        f"{place.instance} does not answer: {trouble}", "pdctl status", code=Exit.UNREACHABLE
    )

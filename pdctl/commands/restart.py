"""``pdctl restart``: daemons end and start again, one by one or some at a time, without loss.

A worker is drained, its process is replaced (by systemd, or by our supervisor where systemd does
not run them), and the next one's turn comes when it serves again under a new epoch. What fails
stops the roll: those that were not reached keep serving.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import completion, options
from pdctl.errors import CommandError, Exit
from pdctl.render import confirm, say

if TYPE_CHECKING:
    from daemons.cluster.load import ClusterFile
    from daemons.protocol.topology import InstanceInfo
    from pdctl.places import Place

LOOK_S = 0.25


def restart(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Daemons; with --rolling all workers.", autocompletion=completion.names
        ),
    ] = None,
    config: options.Config = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="Every worker, while the cluster serves.")
    ] = False,
    max_unavailable: Annotated[
        int, typer.Option(help="How many of one role may be away at a time.", min=1)
    ] = 1,
    deadline: Annotated[
        float, typer.Option(help="Seconds for the rooms of one to finish.", min=0)
    ] = 120.0,
    timeout: Annotated[float, typer.Option(help="Seconds for one to serve again.", min=1)] = 180.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also where none of a role is left meanwhile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say in which order.")] = False,
    yes: options.Yes = False,
) -> int:
    """Restart daemons without losing a request.

    Example: pdctl restart --rolling --max-unavailable 1
    """
    from pdctl import target
    from pdctl.survey import located

    found = target.find(config)
    known = located(found.cluster)
    turns = list(batches(_chosen(known, names or [], rolling=rolling), max_unavailable))
    _check(known, turns, force=force)
    for turn in turns:
        say(f"  {', '.join(place.instance for place in turn)}")
    if dry_run:
        return Exit.OK
    confirm(f"restart {sum(map(len, turns))} daemons in this order?", yes=yes)
    for turn in turns:
        _replace(found.file, turn, deadline, timeout)
    say("all restarted")
    return Exit.OK


def batches(places: Sequence[Place], at_once: int) -> Iterator[list[Place]]:
    """Yield turns of at most ``at_once`` daemons, all of one role each."""
    turn: list[Place] = []
    for place in places:
        if turn and (len(turn) == at_once or turn[0].role is not place.role):
            yield turn
            turn = []
        turn.append(place)
    if turn:
        yield turn


def _chosen(known: dict[str, Place], names: list[str], *, rolling: bool) -> list[Place]:
    from pdctl.places import WORKERS

    if bool(names) == rolling:
        raise CommandError(
            "daemons to restart are named, or all workers are meant by --rolling",
            "pdctl restart d0, or pdctl restart --rolling",
            code=Exit.USAGE,
        )
    for name in names:
        if name not in known:
            raise CommandError(
                f"no daemon {name} in the cluster file",
                "pdctl status lists them",
                code=Exit.NOT_FOUND,
            )
    if names:
        return sorted((known[name] for name in names), key=lambda place: place.role.value)
    workers = [place for place in known.values() if place.role in WORKERS and place.host != "?"]
    return sorted(workers, key=lambda place: (WORKERS.index(place.role), place.instance))


def _check(known: dict[str, Place], turns: list[list[Place]], *, force: bool) -> None:
    """Refuse a roll that would leave nobody of a role."""
    from daemons.protocol.topology import State
    from pdctl.places import WORKERS

    ready = {name for name, info in _listed(known).items() if info.state is State.READY}
    for turn in turns:
        role = turn[0].role
        away = {place.instance for place in turn}
        left = [name for name in ready - away if known[name].role is role]
        if role in WORKERS and not left and not force:
            raise CommandError(
                f"no ready {role.value} would be left while {', '.join(sorted(away))} restarts",
                "start another one first, or --force: requests will wait or get 503 meanwhile",
                code=Exit.CONFLICT,
            )


def _replace(file: ClusterFile, turn: list[Place], deadline_s: float, timeout_s: float) -> None:
    from pdctl.commands.drain import switch, wait
    from pdctl.places import WORKERS

    workers = [place for place in turn if place.role in WORKERS]
    began = time.monotonic()
    before = {name: info.epoch for name, info in _listed(_known(file)).items()}
    replaced: list[Place] = []
    try:
        for place in workers:
            switch(place, on=True)
        for place in workers:
            wait(place, deadline_s)
        for place in turn:
            again(file, place)
            replaced.append(place)
    except BaseException:  # Ctrl-C too must leave nobody out of routing
        _put_back([place for place in workers if place not in replaced])
        raise
    for place in turn:
        _await_new(file, place, before.get(place.instance, 0), timeout_s)
    took_s = time.monotonic() - began
    say(f"  {', '.join(place.instance for place in turn)} restarted in {took_s:.1f} s")


def _put_back(drained: list[Place]) -> None:
    """Let workers take rooms again; one that cannot is told, for another error is on its way."""
    from pdctl.commands.drain import switch

    for place in drained:
        try:
            switch(place, on=False)
        except CommandError as error:
            say(f"  {place.instance} is not put back: {error.what}")


def again(file: ClusterFile, place: Place) -> None:
    """Replace a daemon's process; returns before it serves.

    Raises:
        CommandError: nobody here or there can.
    """
    from daemons.cluster.load import address_of
    from pdctl import target, units
    from pdctl.runs import read_run, run_directory
    from pdctl.supervisor import ask_restart

    directory = run_directory(file.cluster.name)
    run = read_run(directory)
    if run is not None and run.host == place.host and ask_restart(directory, run, place.instance):
        return
    unit = units.unit_of(place.role, place.instance)
    is_here = units.installed() and place.host == target.this_host(file.cluster, None)
    units.restart(unit, host=None if is_here else address_of(file.cluster, place.host))


def _await_new(file: ClusterFile, place: Place, old_epoch: int, timeout_s: float) -> None:
    """Wait until a daemon serves that began after ``old_epoch``."""
    from pdctl.readiness import waiting

    end = time.monotonic() + timeout_s
    while True:
        info = _listed(_known(file)).get(place.instance)
        is_new = info is not None and info.epoch > old_epoch
        reasons = waiting(file.cluster, [place.instance]).reasons
        if (is_new or place.instance == "bootstrap") and not reasons:
            return
        if time.monotonic() > end:
            why = reasons.get(place.instance, "its old life is still in the phone book")
            raise CommandError(
                f"{place.instance} does not serve {timeout_s:.0f} s after its restart: {why}",
                f"pdctl logs {place.instance}; the daemons after it were not touched",
                code=Exit.TIMEOUT,
            )
        time.sleep(LOOK_S)


def _known(file: ClusterFile) -> dict[str, Place]:
    from pdctl.survey import located

    return located(file.cluster)


def _listed(known: dict[str, Place]) -> dict[str, InstanceInfo]:
    from pdctl.survey import phone_book

    return {info.instance: info for info in phone_book(known["bootstrap"])[0]}

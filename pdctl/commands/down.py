"""``pdctl down``: ends what ``pdctl up`` started here, in order, and nothing else.

Units are stopped by systemd, processes that pdctl supervises by their supervisor.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import confirm, say

if TYPE_CHECKING:
    from pathlib import Path

    from daemons.cluster.load import ClusterFile
    from pdctl.runs import Child, Run

LOOK_S = 0.2
LEAD_S = 15.0  # how much longer than its own deadline the supervisor is waited for


def down(
    config: options.Config = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds for rooms to finish; then daemons are killed.", min=0)
    ] = 70.0,
    all_hosts: options.AllHosts = False,
    yes: options.Yes = False,
) -> int:
    """Drain and end this host's daemons, or those of every host.

    Example: pdctl down --deadline 120
    """
    from pdctl import target
    from pdctl.runs import read_run, run_directory
    from pdctl.units import installed

    found = target.find(config)
    if all_hosts:
        return _everywhere(found.file, deadline, yes=yes)
    if installed():
        return _through_units(found.file, deadline, yes=yes)
    directory = run_directory(found.cluster.name)
    run = read_run(directory)
    if run is None or not run.is_up:
        say(f"cluster {found.cluster.name} is not up here")
        return Exit.OK
    names = ", ".join(child.instance for child in run.alive) or "the supervisor"
    confirm(f"end {names} of cluster {run.cluster}?", yes=yes)
    is_supervised = run.supervisor.is_alive
    killed = _ask(directory, run, deadline) if is_supervised else _by_hand(run, deadline)
    if killed:
        raise CommandError(
            f"killed after the deadline: {', '.join(killed)}",
            "rooms that were open have failed; --deadline gives them longer",
            code=Exit.TIMEOUT,
        )
    say("all down")
    return Exit.OK


def _everywhere(file: ClusterFile, deadline_s: float, *, yes: bool) -> int:
    from pdctl import everywhere
    from pdctl.hosts import hosts_of

    names = ", ".join(host.name for host in hosts_of(file.cluster))
    confirm(f"end cluster {file.cluster.name} on {names}?", yes=yes)
    return everywhere.down(file, deadline_s)


def _through_units(file: ClusterFile, deadline_s: float, *, yes: bool) -> int:
    """Let systemd stop this host's units, sockets first: they would start their services again."""
    from pdctl import units

    names = [name for name in units.enabled() if units.is_active(name)]
    if not names:
        say(f"cluster {file.cluster.name} is not up here")
        return Exit.OK
    services = [units.instance_of(name) for name in names if name.endswith(".service")]
    confirm(f"end {', '.join(services)} of cluster {file.cluster.name}?", yes=yes)
    end = time.monotonic() + deadline_s
    for name in names:
        if name.endswith(".service"):
            say(f"  waiting for {units.instance_of(name)}")
        try:
            units.stop([name], within_s=max(end - time.monotonic(), 1.0))
        except CommandError as error:
            if error.code is not Exit.TIMEOUT:
                raise
            units.kill(name)
            raise CommandError(
                f"killed after the deadline: {units.instance_of(name)}",
                "rooms that were open have failed; --deadline gives them longer; pdctl down again",
                code=Exit.TIMEOUT,
            ) from error
    units.stop([units.TARGET])
    say("all down")
    return Exit.OK


def _ask(directory: Path, run: Run, deadline_s: float) -> list[str]:
    """Let the supervisor stop, so that it starts nothing again; kill what is left over."""
    from pdctl.runs import read_run
    from pdctl.stopping import stop_in_order

    run.supervisor.send(signal.SIGTERM)
    end = time.monotonic() + deadline_s
    words = ""
    while not run.supervisor.wait(LOOK_S):
        words = _tell(run.alive, words)
        if time.monotonic() > end:
            run.supervisor.send(signal.SIGTERM)  # the second one: without draining
            break
    run.supervisor.wait(LEAD_S)
    left = (read_run(directory) or run).alive
    if not left and not run.supervisor.is_alive:
        return []
    run.supervisor.send(signal.SIGKILL)
    stop_in_order(left, 0)
    return [child.instance for child in left] or ["supervisor"]


def _by_hand(run: Run, deadline_s: float) -> list[str]:
    from pdctl.stopping import stop_in_order

    say("the supervisor is gone; ending its daemons without it")
    words = ""

    def progress(left: list[Child]) -> None:
        nonlocal words
        words = _tell(left, words)

    return stop_in_order(run.alive, deadline_s, progress=progress)


def _tell(left: list[Child], before: str) -> str:
    words = ", ".join(child.instance for child in left)
    if words != before and words:
        say(f"  waiting for {words}")
    return words

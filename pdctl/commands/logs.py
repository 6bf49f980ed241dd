"""``pdctl logs``: what the daemons of this host write, one of them or all by time."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from pdctl import completion, options
from pdctl.errors import CommandError, Exit

LOOK_S = 0.25


def logs(
    name: Annotated[
        str | None,
        typer.Argument(help="One daemon; without it all.", autocompletion=completion.names),
    ] = None,
    config: options.Config = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last.", min=0)] = 50,
    raw: Annotated[bool, typer.Option("--raw", help="As written: one JSON object a line.")] = False,
    all_hosts: options.AllHosts = False,
) -> int:
    """Show the logs of this host's daemons, or of every host's.

    Example: pdctl logs p0 --follow
    """
    from pdctl import target
    from pdctl.logfiles import Follower, moment, pretty, tail
    from pdctl.runs import log_path, read_run, run_directory
    from pdctl.units import installed

    if all_hosts:
        return _everywhere(config, name, lines, follow=follow, raw=raw)
    if installed():
        return _from_journal(name, lines, follow=follow, raw=raw)
    cluster = target.find(config).cluster
    run = read_run(run_directory(cluster.name))
    names = [child.instance for child in run.children] if run else []
    if name is not None and name not in [*names, "supervisor"]:
        raise CommandError(
            f"no logs of {name} on this host",
            f"pdctl up keeps them here of: {', '.join(names) or 'nothing yet'}; "
            "systemd's are in journalctl",
            code=Exit.NOT_FOUND,
        )
    if name is None and not names:
        raise CommandError(
            f"cluster {cluster.name} was never up here",
            "pdctl up; the logs of systemd's daemons are in journalctl",
            code=Exit.NOT_FOUND,
        )
    paths = [log_path(cluster.name, each) for each in ([name] if name else names)]
    followers = [Follower(path) for path in paths]
    told = [line for path in paths for line in tail(path, lines)]
    if len(paths) > 1:
        told = sorted(told, key=moment)[-lines:] if lines else []
    for line in told:
        print(line if raw else pretty(line))
    while follow:
        for follower in followers:
            for line in follower.lines():
                print(line if raw else pretty(line))
        sys.stdout.flush()
        time.sleep(LOOK_S)
    return Exit.OK


def _everywhere(
    config: options.Config, name: str | None, lines: int, *, follow: bool, raw: bool
) -> int:
    from pdctl import everywhere, target
    from pdctl.logfiles import pretty

    if follow:
        raise CommandError(
            "--follow does not go with --all-hosts",
            "pdctl logs --follow on the host itself",
            code=Exit.USAGE,
        )
    told, code = everywhere.logs(target.find(config).file, name, lines)
    for line in told:
        print(line if raw else pretty(line))
    return code


def _from_journal(name: str | None, lines: int, *, follow: bool, raw: bool) -> int:
    from pdctl import units
    from pdctl.logfiles import pretty

    services = [unit for unit in units.enabled() if unit.endswith(".service")]
    wanted = [unit for unit in services if name in (None, units.instance_of(unit))]
    if not wanted:
        raise CommandError(
            f"no unit of {name or 'ours'} on this host",
            f"enabled here: {', '.join(map(units.instance_of, services)) or 'nothing'}",
            code=Exit.NOT_FOUND,
        )
    for line in units.journal(wanted, lines, follow=follow):
        print(line if raw else pretty(line), flush=follow)
    return Exit.OK

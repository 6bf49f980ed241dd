"""``pdctl up``: starts this host's daemons, waits until they serve, and keeps them running.

Where our units are installed systemd starts and keeps them, and pdctl returns when they serve.
Elsewhere pdctl does it itself: in the foreground Ctrl-C or SIGTERM is an orderly stop; with
``--detach`` a small supervisor stays and pdctl returns when everything serves. A start that fails
takes down what it started.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import duration, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from daemons.cluster.load import ClusterFile
    from pdctl.runs import Run
    from pdctl.starting import Progress
    from pdctl.supervisor import Supervisor

LOOK_S = 0.25  # how often readiness is asked for
LOG_LINES = 12  # of the daemon that failed
STOP_S = 15.0  # for the others, when a start fails


def up(
    config: options.Config = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all serve; a supervisor stays.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds until every daemon must serve.", min=1)
    ] = 180.0,
    host: Annotated[
        str | None,
        typer.Option(help="Which host of the file this machine is.", metavar="NAME"),
    ] = None,
    all_hosts: options.AllHosts = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started, start nothing.")
    ] = False,
    no_prefix_cache: Annotated[
        bool,
        typer.Option("--no-prefix-cache", help="Compute and send every prompt from its start."),
    ] = False,
) -> int:
    """Start this host's daemons, or those of every host, and wait until they serve.

    Example: pdctl up --all-hosts
    """
    from pdctl import target
    from pdctl.supervisor import NO_PREFIX_CACHE, launches, prepare
    from pdctl.units import installed, unit_of

    found = target.find(config)
    if all_hosts:
        _check_alone(host, detach=detach, no_prefix_cache=no_prefix_cache)
        return _everywhere(found.file, timeout, dry_run=dry_run)
    here = target.this_host(found.cluster, host)
    words = [NO_PREFIX_CACHE] if no_prefix_cache else []
    planned = launches(found.file, here, words)
    if not planned:
        raise CommandError(
            f"{found.file.path} has no daemon on host {here}",
            "--host names another one",
            code=Exit.CONFLICT,
        )
    if words and installed():
        raise CommandError(
            f"{NO_PREFIX_CACHE} does not reach the installed units",
            "set prefix_cache: false in the sections of prefill and decode",
            code=Exit.CONFLICT,
        )
    if dry_run:
        for launch in planned:
            by_unit = f"systemctl start {unit_of(launch.role, launch.instance)}"
            print(f"{launch.instance}: {by_unit if installed() else ' '.join(launch.argv)}")
        return Exit.OK
    if installed():
        return _through_units(found.file, here, timeout)
    if _is_up_already(found.file, here):
        return Exit.OK
    _check_host(found.file, here)
    say(f"starting {', '.join(launch.instance for launch in planned)} of {found.file.path}")
    if detach:
        _detached(found.file, here, timeout, words)
        return Exit.OK
    return _foreground(prepare(found.file, here, words), found.file, timeout)


def _check_alone(host: str | None, *, detach: bool, no_prefix_cache: bool) -> None:
    if host is not None or detach or no_prefix_cache:
        raise CommandError(
            "--all-hosts starts installed units; --host, --detach, --no-prefix-cache do not fit",
            "pdctl up --all-hosts",
            code=Exit.USAGE,
        )


def _everywhere(file: ClusterFile, timeout_s: float, *, dry_run: bool) -> int:
    from pdctl import everywhere
    from pdctl.hosts import hosts_of
    from pdctl.installation.wanted import units_of_host

    if not dry_run:
        return everywhere.up(file, timeout_s)
    for host in hosts_of(file.cluster):
        there = f"--host {host.address} " if host.address else ""
        print(f"{host.name}: systemctl {there}start {' '.join(units_of_host(file, host.name))}")
    return Exit.OK


def _is_up_already(file: ClusterFile, here: str) -> bool:
    from pdctl.runs import read_run, run_directory

    run = read_run(run_directory(file.cluster.name))
    if run is None or not run.is_up:
        return False
    is_same = (run.config_hash, run.host) == (file.hash, here)
    if is_same and run.supervisor.is_alive and not run.stopping:
        say(f"already up for {duration(time.time() - run.began_s)}; pdctl status shows it")
        return True
    other = f"is up here as host {run.host}, with another file or without its supervisor"
    if run.stopping:
        why, hint = "is stopping", "pdctl down waits for its end"
    else:
        why, hint = other, "pdctl down first"
    raise CommandError(f"cluster {run.cluster} {why}", hint, code=Exit.CONFLICT)


def _check_host(file: ClusterFile, here: str) -> None:
    """Fail before anything is started when it could not work."""
    from daemons.cluster.models import model_directory
    from pdctl.ports import taken

    model_directory(file.cluster.model)
    for instance, where in taken(file.cluster, here):
        raise CommandError(
            f"{where}, where {instance} listens, is taken by another process",
            f"stop that process, or set port: of {instance} in {file.path}",
            code=Exit.CONFLICT,
        )


def _foreground(supervisor: Supervisor, file: ClusterFile, timeout_s: float) -> int:
    supervisor.start()
    try:
        progress = _progress(file, supervisor.run, timeout_s)
        while not supervisor.stop_asked and not progress.is_ready:
            supervisor.step(LOOK_S)
            _check_children(supervisor.run)
            progress.look()
        if progress.is_ready:
            say("Ctrl-C stops it")
        reported: dict[str, tuple[int, str]] = {}
        while not supervisor.stop_asked and not supervisor.is_idle:
            supervisor.step()
            _report_changes(supervisor.run, reported)
        say("stopping: rooms may finish; once more (Ctrl-C) does not wait for them")
    except CommandError:
        supervisor.stop(STOP_S)
        raise
    finally:
        killed = supervisor.stop(_drain_s(file))
        supervisor.close()
    if killed:
        say(f"killed after the deadline: {', '.join(killed)}")
    failed = [child.instance for child in supervisor.run.children if child.state == "failed"]
    return Exit.FAILED if failed or killed else Exit.OK


def _detached(file: ClusterFile, here: str, timeout_s: float, words: Sequence[str]) -> None:
    import sys

    from pdctl.processes import start_detached
    from pdctl.runs import log_path, make_run_directory, read_run

    directory = make_run_directory(file.cluster.name)
    (directory / "run.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pdctl.supervisor", "--config", str(file.path)]
    command += ["--host", here, "--deadline", str(_drain_s(file)), *words]
    log = log_path(file.cluster.name, "supervisor")
    supervisor = start_detached(command, log)
    progress: Progress | None = None
    try:
        while progress is None or not progress.is_ready:
            time.sleep(LOOK_S)
            run = read_run(directory)
            if run is not None:
                progress = progress or _progress(file, run, timeout_s)
                _check_children(run)
                progress.look()
            if not supervisor.is_alive:
                raise CommandError("the supervisor ended", f"see {log}")
    except BaseException:
        say("taking down what was started")
        supervisor.send(signal.SIGTERM)
        supervisor.wait(STOP_S)
        raise


def _through_units(file: ClusterFile, here: str, timeout_s: float) -> int:
    """Let systemd start this host's units, and wait until they serve."""
    from daemons.cluster.load import load
    from pdctl import units
    from pdctl.installation.wanted import CONFIG, units_of_host
    from pdctl.starting import Progress

    if file.path != CONFIG and load(CONFIG).hash != file.hash:
        raise CommandError(
            f"the units run {CONFIG}, which is not {file.path}",
            f"pdctl install --config {file.path} changes that; pdctl up alone starts them",
            code=Exit.CONFLICT,
        )
    names = units_of_host(file, here)
    services = {units.instance_of(name): name for name in names if name.endswith(".service")}
    if all(units.is_active(name) for name in names):
        say("already up by systemd; pdctl status shows it")
        return Exit.OK
    say(f"starting {', '.join(services)} by systemd")
    units.start([units.TARGET, *names])
    progress = Progress(file, list(services), timeout_s, _show_journal)
    while not progress.is_ready:
        time.sleep(LOOK_S)
        for instance, name in services.items():
            if (words := units.failure(name)) is not None:
                _show_journal(instance)
                raise CommandError(
                    f"{instance} {words}",
                    f"its last lines are above; all of them: pdctl logs {instance}",
                    code=Exit.BAD_CONFIG if "78" in words else Exit.FAILED,
                )
        progress.look()
    return Exit.OK


def _progress(file: ClusterFile, run: Run, timeout_s: float) -> Progress:
    from pdctl.starting import Progress

    names = [child.instance for child in run.children]
    return Progress(file, names, timeout_s, lambda name: _show_log(file.cluster.name, name))


def _check_children(run: Run) -> None:
    """Raise CommandError when a daemon has ended."""
    for child in run.children:
        if child.restarts or child.state in ("failed", "waiting", "left"):
            _show_log(run.cluster, child.instance)
            raise CommandError(
                f"{child.instance} ended with {_exit_words(child.exit_code)} while starting",
                f"its last lines are above; all of them: pdctl logs {child.instance}",
                code=Exit.BAD_CONFIG if child.exit_code == 78 else Exit.FAILED,
            )


def _report_changes(run: Run, reported: dict[str, tuple[int, str]]) -> None:
    for child in run.children:
        seen = (child.restarts, child.state)
        before = reported.setdefault(child.instance, (0, "running"))
        if seen == before:
            continue
        reported[child.instance] = seen
        words = {
            "running": f"started again, try {child.restarts}",
            "waiting": f"ended with {_exit_words(child.exit_code)}, will be started again",
            "failed": f"ended with {_exit_words(child.exit_code)}, for good",
            "left": "has drained and left",
        }[child.state]
        say(f"{child.instance} {words}; pdctl logs {child.instance}")


def _show_log(cluster: str, instance: str) -> None:
    from pdctl.logfiles import pretty, tail
    from pdctl.runs import log_path

    show: Callable[[str], str] = pretty
    path = log_path(cluster, instance)
    say(f"--- the last lines of {path}")
    for line in tail(path, LOG_LINES):
        say(show(line))
    say("---")


def _show_journal(instance: str) -> None:
    from pdctl.logfiles import pretty
    from pdctl.units import journal, unit_named

    unit = unit_named(instance)
    say(f"--- the last lines of {unit}")
    for line in journal([unit], LOG_LINES):
        say(pretty(line))
    say("---")


def _exit_words(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _drain_s(file: ClusterFile) -> float:
    """Longest drain of the file's workers, and a little more for the ends."""
    from pdctl.places import settings

    workers = [*file.cluster.prefill, *file.cluster.decode]
    return 10 + max((settings(file.cluster, name).timers.drain_s for name in workers), default=0)

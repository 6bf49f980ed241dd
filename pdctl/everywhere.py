"""``up``, ``down`` and ``logs`` on every host of the cluster file at once, by systemd over ssh."""

from __future__ import annotations

import time
from collections.abc import Iterator

from daemons.cluster.load import BOOTSTRAP_NAME, ClusterFile
from daemons.protocol.topology import Role
from pdctl import units
from pdctl.errors import CommandError, Exit
from pdctl.hosts import Host, daemons_on, done_on, hosts_of, on_each, verdict
from pdctl.installation.wanted import units_of_host
from pdctl.logfiles import moment
from pdctl.places import Place
from pdctl.render import say
from pdctl.starting import Progress

LOOK_S = 0.25
UNITS_S = 2.0  # between two questions to systemd, each an ssh connection per daemon
ROLES = ("lb", "prefill", "decode", "bootstrap")  # in stopping order


def up(file: ClusterFile, timeout_s: float) -> int:
    """Start every host's units and wait until all that could be started serve.

    A host that is lost meanwhile is told, and its daemons are no longer waited for.

    Raises:
        CommandError: a daemon fails, or does not serve in time; or no host can be reached.
    """
    hosts = {host.name: host for host in hosts_of(file.cluster)}
    say(f"starting {len(hosts)} hosts: {', '.join(hosts)}")

    def start(host: Host) -> None:
        units.start([units.TARGET, *units_of_host(file, host.name)], host=host.address)

    results = on_each(list(hosts.values()), start)
    started = daemons_on(file, done_on(results))
    names = [place.instance for place in started]
    if BOOTSTRAP_NAME not in names:
        what = "the phone book's host cannot be started" if started else "no host can be started"
        raise CommandError(what, "see its words above", code=Exit.UNREACHABLE)
    progress = Progress(file, names, timeout_s, lambda name: None)
    left_out: set[str] = set()
    asked_s = time.monotonic()
    while not progress.is_ready:
        time.sleep(LOOK_S)
        progress.look()
        if time.monotonic() - asked_s < UNITS_S:
            continue
        lost = _lost([place for place in started if place.host not in left_out], hosts)
        results |= lost
        left_out |= set(lost)
        progress.leave_out([place.instance for place in started if place.host in lost])
        asked_s = time.monotonic()
    return verdict(results)


def _lost(started: list[Place], hosts: dict[str, Host]) -> dict[str, CommandError]:
    """Ask systemd how daemons fare; returns the hosts on which it no longer can be asked.

    Raises:
        CommandError: a daemon fails, or the phone book's host is lost.
    """
    lost: dict[str, CommandError] = {}
    for place in started:
        if place.host in lost:
            continue
        try:
            words = units.failure(
                units.unit_of(place.role, place.instance), host=hosts[place.host].address
            )
        except CommandError as error:
            if any(one.host == place.host and one.role is Role.BOOTSTRAP for one in started):
                raise
            say(f"  {place.host} is left out: {error.what}")
            lost[place.host] = CommandError(error.what, error.hint, code=Exit.UNREACHABLE)
            continue
        if words:
            hint = f"pdctl logs {place.instance} --all-hosts"
            raise CommandError(f"{place.instance} on {place.host} {words}", hint)
    return lost


def down(file: ClusterFile, deadline_s: float) -> int:
    """Stop every host's units, role by role, so that nothing is asked of a daemon that has gone.

    Sockets go with the first role: they would start their services again.
    """
    hosts = hosts_of(file.cluster)
    lost: dict[str, object] = {}
    end = time.monotonic() + deadline_s
    for role in ROLES:
        turn = [host for host in hosts if host.name not in lost and _units(file, host, role)]

        def stop(host: Host, role: str = role) -> None:
            names = _units(file, host, role)
            left_s = max(end - time.monotonic(), 1.0)
            units.stop(names, host=host.address, within_s=left_s + units.STOP_LEAD_S)
            told = [units.instance_of(name) for name in names if name.endswith(".service")]
            say(f"  {', '.join(told)} of {host.name} down")

        results = on_each(turn, stop)
        lost |= {name: result for name, result in results.items() if result is not None}
    return verdict(lost)


def _units(file: ClusterFile, host: Host, role: str) -> list[str]:
    """Return a host's units of a role in stopping order; all sockets with the first one."""
    names = [
        name
        for name in units_of_host(file, host.name)
        if (name.endswith(".socket") and role == ROLES[0])
        or (name.endswith(".service") and name.startswith(f"pd-{role}"))
    ]
    return sorted(names, key=units.stopping_order)


def logs(file: ClusterFile, instance: str | None, lines: int) -> tuple[list[str], int]:
    """Return the last lines of all daemons, or one, of every host by time, and an exit code."""

    def read(host: Host) -> list[str]:
        names = [
            units.unit_of(place.role, place.instance)
            for place in daemons_on(file, [host.name])
            if instance in (None, place.instance)
        ]
        argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"--lines={lines}"]
        return host.run([*argv, *(f"--unit={name}" for name in names)]).splitlines()

    chosen = [
        host
        for host in hosts_of(file.cluster)
        if any(instance in (None, place.instance) for place in daemons_on(file, [host.name]))
    ]
    if not chosen:
        raise CommandError(
            f"no daemon {instance} in the cluster file",
            "pdctl status lists them",
            code=Exit.NOT_FOUND,
        )
    results = on_each(chosen, read)
    told = [line for result in results.values() for line in _lines(result)]
    return sorted(told, key=moment)[-lines:] if lines else [], verdict(results)


def _lines(result: list[str] | CommandError) -> Iterator[str]:
    if not isinstance(result, CommandError):
        yield from result

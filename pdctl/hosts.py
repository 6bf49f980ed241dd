"""The hosts of a cluster file that run daemons, and doing something on all of them at once.

- This host is spoken to directly, every other one by ssh, which must need no password
  (``BatchMode``): its user, port and keys are ssh's own business (``~/.ssh/config``).
- A host that cannot be reached is told and left out; the others go on.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from daemons.cluster.load import ClusterFile, address_of
from daemons.cluster.model import Cluster
from pdctl.errors import CommandError, Exit
from pdctl.places import Place, places
from pdctl.render import say
from pdctl.target import this_host

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SSH_S = 20.0
SSH_FAILED = 255  # ssh's own exit code, as opposed to that of what it ran

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the file."""

    name: str
    address: str | None  # how ssh and systemctl call it; None: this very machine

    def run(self, argv: Sequence[str], *, said: str | None = None, within_s: float = SSH_S) -> str:
        """Run a command there and return what it prints.

        Args:
            argv: the command; no shell reads it, here or there.
            said: its standard input.
            within_s: how long it may take.

        Raises:
            CommandError: it failed, or the host cannot be reached (Exit.UNREACHABLE).
        """
        there = [*SSH, self.address, "--", shlex.join(argv)] if self.address else list(argv)
        try:
            done = subprocess.run(
                there, input=said or "", capture_output=True, text=True, timeout=within_s
            )
        except FileNotFoundError as error:
            raise CommandError(
                f"{there[0]} is not installed", "apt install openssh-client"
            ) from error
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"{self.name}: no answer in {within_s:.0f} s", self.hint, code=Exit.UNREACHABLE
            ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            is_lost = bool(self.address) and done.returncode == SSH_FAILED
            code = Exit.UNREACHABLE if is_lost else Exit.FAILED
            raise CommandError(f"{self.name}: {last}", self.hint, code=code)
        return done.stdout

    def reach(self) -> None:
        """Raise CommandError when it cannot be reached; that is known within seconds."""
        if self.address:
            self.run(["true"])

    @property
    def hint(self) -> str:
        """What to try by hand."""
        return f"try: ssh {self.address} true" if self.address else "see its words"


def hosts_of(cluster: Cluster) -> list[Host]:
    """Return the hosts that run daemons, in the order of the file."""
    used = {place.host for place in places(cluster).values()}
    try:
        here = this_host(cluster, None)
    except CommandError:  # an operator's own machine, which is none of them
        here = ""
    return [
        Host(name, None if name == here else address_of(cluster, name))
        for name in cluster.hosts
        if name in used
    ]


def on_each(hosts: Sequence[Host], do: Callable[[Host], T]) -> dict[str, T | CommandError]:
    """Do something on all hosts at once, and tell who could not; results by host name."""

    def attempt(host: Host) -> T | CommandError:
        try:
            host.reach()
            return do(host)
        except CommandError as error:
            say(f"  {host.name} is left out: {error.what.removeprefix(f'{host.name}: ')}")
            return error

    if not hosts:
        return {}
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = pool.map(attempt, hosts)
        return dict(zip((host.name for host in hosts), found, strict=True))


def done_on(results: Mapping[str, object]) -> list[str]:
    """Return the hosts on which it went well."""
    return [name for name, result in results.items() if not isinstance(result, CommandError)]


def verdict(results: Mapping[str, object]) -> int:
    """Return the exit code of the whole: the worst of what went wrong anywhere."""
    codes = [result.code for result in results.values() if isinstance(result, CommandError)]
    return Exit.UNREACHABLE if Exit.UNREACHABLE in codes else max(codes, default=Exit.OK)


def daemons_on(file: ClusterFile, names: Sequence[str]) -> list[Place]:
    """Return the daemons of some hosts, in starting order."""
    return [place for place in places(file.cluster).values() if place.host in names]

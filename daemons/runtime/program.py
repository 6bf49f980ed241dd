"""What the daemons' command lines have in common: flags, exit codes, and signals.

Exit codes: 0 drained, 78 a bad cluster file (systemd does not restart it), 1 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import ClusterFile, load
from daemons.runtime import systemd

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 78  # EX_CONFIG of sysexits.h

DISTRIBUTION = "pd"

Serve = Callable[[ClusterFile], Coroutine[object, object, None]]


@dataclass(frozen=True, slots=True)
class Stop:
    """How a daemon is asked to end: a first SIGTERM or SIGINT sets ``asked``, a second ``now``."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    now: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self, reload: Callable[[], None] = lambda: None) -> None:
        """Take over the signals of this process; SIGHUP calls ``reload``."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)
        loop.add_signal_handler(signal.SIGHUP, reload)

    def ask(self) -> None:
        """Ask once, or once more."""
        (self.now if self.asked.is_set() else self.asked).set()


def version() -> str:
    """Return the version of the installed software, "0" in a tree that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "0"


def socket_of_unit() -> socket.socket | None:
    """Return the socket that systemd holds open for this daemon, if it does.

    Raises:
        OperatorError: it holds several.
    """
    sockets = systemd.listen_fds()
    if len(sockets) > 1:
        raise OperatorError(
            f"systemd hands over {len(sockets)} sockets, one is served",
            "leave one ListenStream= in the socket unit",
        )
    return sockets[0] if sockets else None


def run(
    program: str,
    about: str,
    serve: Serve,
    argv: Sequence[str] | None = None,
    *,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    flags_too: Sequence[argparse.ArgumentParser] = (),
) -> int:
    """Read the flags and the cluster file, run ``serve`` to its end, and return the exit code.

    ``loop`` makes the event loop, where it is not asyncio's own; ``flags_too`` are known beside.
    """
    parser = argparse.ArgumentParser(prog=program, description=about, parents=flags_too)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="cluster file")
    flags = parser.parse_args(argv)
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(serve(load(flags.config)))
    except OperatorError as error:
        print(f"{program}: {error.what}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except OSError as error:  # most of all: the address is taken
        print(f"{program}: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    return 0

"""One Mooncake engine, held so that none of its sharp edges can be reached.

Measured on 0.3.13.post1: a method before ``initialize``, a status asked twice or for the id 0,
and an engine used in a forked child crash or hang the process. So an engine is initialised when
it exists, ids are remembered until they are final, and another process id refuses everything.

``end`` is the fence: the engine's threads are joined and its sockets closed when it returns.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.transfer import sockets
from daemons.transfer.backend import Copy, Region

NO_ID = (0, 2**64 - 1)  # what a refused submit returns: 0, and -1 as an unsigned number


class Sent(IntEnum):
    """What ``transfer_check_status`` answers."""

    RUNNING = 0
    DONE = 1  # acknowledged by the peer's engine
    FAILED = -1
    TIMED_OUT = -2


class Engine:
    """An initialised engine of this process."""

    def __init__(self, module: Any, host: str, device: str) -> None:
        """``module`` is ``mooncake.engine``; ``host`` an address or name of this machine.

        Raises:
            OperatorError: Mooncake does not start.
        """
        self._pid = os.getpid()
        self._ids: set[int] = set()
        self._opening = 0
        engine = module.TransferEngine()
        # the protocol argument chooses nothing; devices and MC_FORCE_TCP do
        if engine.initialize(host, "P2PHANDSHAKE", "tcp", device) != 0:
            raise OperatorError(
                f"Mooncake does not start on {host}" + (f" with device {device}" if device else ""),
                "its own lines on stderr say why; pdctl doctor checks devices and ports",
            )
        self._engine: Any = engine
        self.port = int(engine.get_rpc_port())
        _engines.add(self)

    def register(self, regions: Sequence[Region]) -> None:
        """Register memory for both directions.

        Raises:
            OperatorError: refused; with RDMA mostly the limit of locked memory.
        """
        addresses = [region.address for region in regions]
        lengths = [region.bytes for region in regions]
        code = self._live().batch_register_memory(addresses, lengths)
        if code != 0:
            raise OperatorError(
                f"Mooncake cannot register {sum(lengths)} bytes in {len(regions)} regions: {code}",
                "with RDMA the limit of locked memory must allow it: LimitMEMLOCK=infinity",
            )

    def open(self, session: str) -> bool:
        """Fetch the peer's description; False when nobody answers. May last 60 s.

        Sends no data: the list of copies is empty.
        """
        self._opening += 1
        try:
            return bool(self._live().batch_transfer_sync_write(session, [], [], []) == 0)
        finally:
            self._opening -= 1

    def submit(self, session: str, copy: Copy) -> int | None:
        """Begin one copy and return its id, None when it was refused."""
        number = int(
            self._live().transfer_submit_write(session, copy.source, copy.target, copy.bytes)
        )
        if number in NO_ID or number < 0:
            return None
        self._ids.add(number)
        return number

    def check(self, number: int) -> Sent:
        """Ask for a copy's state without waiting; a final answer is given once."""
        if number not in self._ids:
            raise AssertionError(f"copy {number} is unknown or was final before")
        sent = Sent(self._live().transfer_check_status(number))
        if sent is not Sent.RUNNING:
            self._ids.discard(number)
        return sent

    def end(self) -> None:
        """Join the engine's threads and close its sockets; nothing is read or sent after this."""
        end_all([self])

    def _live(self) -> Any:
        if os.getpid() != self._pid:
            raise AssertionError(f"an engine of process {self._pid} used in {os.getpid()}")
        if self._engine is None:
            raise AssertionError("the engine has ended")
        return self._engine


def end_all(engines: Sequence[Engine]) -> None:
    """End several engines in the time of one.

    Raises:
        AssertionError: something still holds an engine, so it may go on writing.
    """
    live = [engine for engine in engines if engine._engine is not None]
    for engine in live:
        engine._live()
        sockets.hurry(engine.port)
    if live:
        time.sleep(4 * sockets.NUDGE_S)
    for engine in live:
        gone = weakref.ref(engine._engine)
        busy = engine._opening > 0  # a thread waits for a peer's answer, and has sent no data
        engine._engine = None
        engine._ids.clear()
        if gone() is not None and not busy:
            raise AssertionError("an engine outlives its end")


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Keep a forked child from ending engines: it would wait for threads it does not have."""
    for engine in _engines:
        if engine._engine is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine._engine))


os.register_at_fork(after_in_child=_forget_in_child)

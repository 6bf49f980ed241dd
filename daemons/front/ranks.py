"""The rank processes of an instance: started together, watched, ended together.

A rank's standard input is a pipe that the front holds open and never writes to: when the front
dies, however it dies, the rank reads its end. Ranks are in process groups of their own, so that a
Ctrl-C at a terminal reaches only the front, which drains. All ranks get every request; rank 0
answers for all.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zmq.asyncio

from daemons.cluster.errors import OperatorError
from daemons.front.link import Link
from daemons.protocol.chaos import FaultOrder
from daemons.protocol.generate import (
    Ask,
    AskFor,
    Chaos,
    LastWords,
    LookUp,
    Outputs,
    RankReady,
    Snapshot,
    Stop,
    ToFront,
    ToRank,
)
from daemons.runtime.log import logger

ASK_S = 2.0  # deadline of a question to a rank
STOP_S = 5.0  # a rank that was told to stop ends within
EOF_S = 2.0  # one that reads the end of its standard input ends within
TERM_S = 2.0  # and one that was sent SIGTERM within
SOCKET_PATH_LIMIT = 100  # bytes, of 108 that the kernel allows

TakeOutputs = Callable[[Outputs], None]
TakeLookUp = Callable[[int, LookUp], None]
Process = asyncio.subprocess.Process


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ended or went mad."""

    rank: int
    how: str
    exit_code: int | None = None  # None: it was killed, or broke without ending

    def __str__(self) -> str:
        return f"rank {self.rank} {self.how}"


class Silent(Exception):
    """Ranks did not answer a question in time."""


class Ranks:
    """Starts ranks and speaks with them."""

    def __init__(self, argvs: Sequence[Sequence[str]]) -> None:
        self._argvs = [tuple(argv) for argv in argvs]
        self._context = zmq.asyncio.Context()
        self._folder = _private_folder()
        self._links: list[Link] = []
        self._processes: list[Process] = []
        self._watches: list[asyncio.Task[None]] = []
        self._questions = itertools.count(1)
        self._answers: dict[tuple[int, int], asyncio.Future[dict[str, object]]] = {}
        self._ready: list[asyncio.Future[RankReady]] = []
        self.death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

    @property
    def links(self) -> list[str]:
        """Addresses of the links, by rank."""
        return [link.address for link in self._links]

    def listen(self, outputs: TakeOutputs, look_up: TakeLookUp) -> None:
        """Bind the links; what comes goes to ``outputs`` and, with its rank, to ``look_up``."""
        for rank in range(len(self._argvs)):
            self._ready.append(asyncio.get_running_loop().create_future())
            address = f"ipc://{self._folder / f'rank{rank}'}"
            self._links.append(
                Link(self._context, address, partial(self._heard, outputs, look_up, rank))
            )

    async def spawn(self) -> None:
        """Start the processes.

        Raises:
            OperatorError: a command cannot be started.
        """
        for rank, argv in enumerate(self._argvs):
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    "--link",
                    self._links[rank].address,
                    stdin=asyncio.subprocess.PIPE,
                    process_group=0,
                )
            except OSError as error:
                raise OperatorError(
                    f"cannot start rank {rank}: {error.strerror}: {argv[0]}",
                    "is the software installed completely?",
                ) from error
            self._processes.append(process)
            self._watches.append(asyncio.create_task(self._watch(rank), name=f"watch-{rank}"))
            logger().info("rank.started", rank=rank, pid=process.pid)

    async def ready(self) -> list[RankReady]:
        """Return what each rank says once it can serve; waits without end."""
        return list(await asyncio.gather(*self._ready))

    def tell(self, message: ToRank) -> None:
        """Tell all ranks; raises Refusal for a request that they cannot take."""
        for link in self._links:
            link.tell(message)

    def tell_rank(self, rank: int, message: ToRank) -> None:
        """Tell one rank."""
        self._links[rank].tell(message)

    async def ask(
        self, what: AskFor, room: int = 0, *, within_s: float = ASK_S
    ) -> list[dict[str, object]]:
        """Return every rank's answer, by rank.

        Raises:
            Silent: not all of them answered within ``within_s``.
        """
        return await self._answered(lambda question: Ask(question, what, room), within_s)

    async def chaos(
        self, order: FaultOrder | None = None, *, clear: bool = False
    ) -> list[dict[str, object]]:
        """Arm a fault in every rank, or clear all; return what each says is armed.

        Raises:
            Silent: not all of them answered in time.
        """
        return await self._answered(lambda question: Chaos(question, order, clear), ASK_S)

    async def _answered(
        self, asking: Callable[[int], ToRank], within_s: float
    ) -> list[dict[str, object]]:
        question = next(self._questions)
        loop = asyncio.get_running_loop()
        keys = [(rank, question) for rank in range(len(self._links))]
        waits: dict[tuple[int, int], asyncio.Future[dict[str, object]]] = {
            key: loop.create_future() for key in keys
        }
        self._answers.update(waits)
        try:
            self.tell(asking(question))
            _, silent = await asyncio.wait(waits.values(), timeout=within_s)
            if silent:
                names = ", ".join(str(rank) for (rank, _), wait in waits.items() if wait in silent)
                raise Silent(f"no answer from rank {names} within {within_s:g} s")
            return [waits[key].result() for key in keys]
        finally:
            for key in keys:
                self._answers.pop(key, None)

    async def close(self) -> None:
        """End what still runs, harder each time, and take the links away."""
        if self._processes and self._all_serve():
            self.tell(Stop())
            await asyncio.gather(*(link.flush() for link in self._links))
            await self._ended(STOP_S)
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        await self._ended(EOF_S)
        for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, None)):
            for rank, process in enumerate(self._processes):
                if process.returncode is None:
                    logger().warning("rank.killed", rank=rank, signal=number.name)
                    process.send_signal(number)
            await self._ended(patience_s)
        for link in self._links:
            await link.close()
        self._context.term()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _all_serve(self) -> bool:
        ready = all(said.done() and not said.cancelled() for said in self._ready)
        return ready and not self.death.done()

    async def _ended(self, within_s: float | None) -> None:
        if self._watches:
            await asyncio.wait(self._watches, timeout=within_s)

    def _heard(
        self, outputs: TakeOutputs, look_up: TakeLookUp, rank: int, message: ToFront
    ) -> None:
        match message:
            case Outputs():
                if rank == 0:
                    outputs(message)
            case Snapshot(question=question, body=body):
                waiting = self._answers.get((rank, question))
                if waiting is not None and not waiting.done():
                    waiting.set_result(body)
            case LookUp():
                look_up(rank, message)
            case LastWords(why=why):
                if not self.death.done():
                    self.death.set_result(Death(rank, f"broke: {why}"))
            case RankReady():
                if not self._ready[rank].done():
                    self._ready[rank].set_result(message)

    async def _watch(self, rank: int) -> None:
        process, broken = self._processes[rank], self._links[rank].broken
        ended = asyncio.ensure_future(process.wait())
        waits: set[asyncio.Future[Any]] = {ended, broken}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        how = how_it_ended(ended.result()) if ended.done() else broken.result()
        if not self.death.done():
            code = ended.result() if ended.done() and ended.result() >= 0 else None
            self.death.set_result(Death(rank, how, code))
        await ended


def how_it_ended(returncode: int) -> str:
    """Return the end of a process in words."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _private_folder() -> Path:
    """Return a new folder, for us alone, whose path is short enough for a socket."""
    folder = tempfile.mkdtemp(prefix="pd-")  # mode 0700
    if len(os.fsencode(folder)) <= SOCKET_PATH_LIMIT - len("/rank9999"):
        return Path(folder)
    os.rmdir(folder)
    return Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))

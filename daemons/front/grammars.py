"""Whether a client's grammar is well-formed for this model, asked before anything else is done.

A front has no engine. It asks a process of its own, started with the first grammar, which compiles
as the ranks will, but within limits; what ends that process is the grammar's fault. So a rank is
only ever given what has been compiled before. Verdicts are remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import sys
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Grammar
from daemons.runtime.http import Refusal, invalid

START_S = 60.0  # the process has loaded its library and answered once
CHECK_S = 10.0  # any later answer
WAITING_LIMIT = 64  # grammars that wait for their verdict
VERDICTS_LIMIT = 4096
CHECK_MODULE = "daemons.engine.grammar_check"

Process = asyncio.subprocess.Process


class Verdict(msgspec.Struct, frozen=True):
    """A line of the process; "" when the grammar is well-formed."""

    why: str


@dataclass(slots=True)
class Grammars:
    """Verdicts on grammars, and the process that finds them.

    Attributes:
        directory: the model's.
        vocabulary: token ids of the model are below it.
    """

    directory: str
    vocabulary: int
    _verdicts: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked: dict[bytes, asyncio.Task[str]] = field(default_factory=dict)
    _process: Process | None = None

    async def check(self, grammar: Grammar) -> None:
        """Return when the grammar can be served.

        Raises:
            Refusal: 400 with the reason when it is not well-formed, needs too much, or xgrammar is
                not installed; 503 when too many wait or the process cannot be had.
        """
        digest = _digest(grammar)
        why = self._verdicts.get(digest)
        if why is None:
            why = await self._wait(digest, grammar)
        else:
            self._verdicts.move_to_end(digest)
        if why:
            raise invalid(f"grammar: {why}")

    async def close(self) -> None:
        """End the process."""
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self._end()

    async def _wait(self, digest: bytes, grammar: Grammar) -> str:
        """One question for all who ask the same; it goes on when a client leaves."""
        if importlib.util.find_spec("xgrammar") is None:
            return "it needs xgrammar, which is not installed here"
        task = self._asked.get(digest)
        if task is None:
            if len(self._asked) >= WAITING_LIMIT:
                raise _busy(f"{WAITING_LIMIT} grammars are being checked")
            task = asyncio.create_task(self._find(digest, grammar), name="grammar-check")
            self._asked[digest] = task
            task.add_done_callback(lambda done: self._settled(digest, done))
        try:
            return await asyncio.shield(task)
        except (OSError, TimeoutError) as error:
            raise _busy(f"grammars cannot be checked: {error}") from error

    def _settled(self, digest: bytes, task: asyncio.Task[str]) -> None:
        del self._asked[digest]
        if task.cancelled() or task.exception() is not None:
            return
        self._verdicts[digest] = task.result()
        while len(self._verdicts) > VERDICTS_LIMIT:
            self._verdicts.popitem(last=False)

    async def _find(self, digest: bytes, grammar: Grammar) -> str:
        async with self._turn:
            try:
                return await self._ask(grammar)
            except BaseException:
                await self._end()  # its next answer would be to this question
                raise

    async def _ask(self, grammar: Grammar) -> str:
        if self._process is None or self._process.returncode is not None:
            await self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(grammar) + b"\n")
        try:
            why = await self._answer(CHECK_S)
        except TimeoutError:
            await self._end()
            return f"{grammar.kind}: it takes too long to compile"
        return f"{grammar.kind}: it breaks the compiler, or takes too much" if why is None else why

    async def _answer(self, within_s: float) -> str | None:
        """Return what the process says next; None when it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), within_s)
        if line:
            return msgspec.json.decode(line, type=Verdict).why
        await self._process.wait()
        return None

    async def _start(self) -> None:
        """Start the process; OSError when it does not come to its first word."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            CHECK_MODULE,
            self.directory,
            str(self.vocabulary),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        why = await self._answer(START_S)
        if why != "":
            raise OSError(why or f"their process ended at its start, exit {self._returncode}")

    @property
    def _returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


def _digest(grammar: Grammar) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(grammar), digest_size=16).digest()


def _busy(why: str) -> Refusal:
    return Refusal(503, why, failure=Failure(Cause.QUEUE_FULL, "intake", "", why))

"""A rank that runs no model: played by hand in a test, or a process that answers by itself.

As a process it answers each request with ``--tokens`` (repeated as long as wanted), one a step;
``hold`` in place of tokens answers nothing. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import zmq
import zmq.asyncio

from daemons.protocol.codec import decode_to_rank, encode_link
from daemons.protocol.generate import (
    Ask,
    AskFor,
    Cancel,
    Drain,
    Finish,
    FinishReason,
    Output,
    Outputs,
    RankReady,
    Snapshot,
    Stop,
    Submit,
    ToFront,
    TokenOut,
    ToRank,
)
from daemons.protocol.ids import RoomKey
from daemons.protocol.story import Line, RoomRow, Story, WorkerStatus
from daemons.protocol.topology import Fingerprint, Shape

HEAR_S = 10.0  # a message that a test waits for comes within

M = TypeVar("M", bound=ToRank)

FINGERPRINT = Fingerprint("tiny", "fp32", 16, 2, 2, 8)


def rank_ready(rank: int = 0, *, max_tokens: int = 400, shape: Shape = Shape()) -> RankReady:  # noqa: B008 - frozen
    """Return what a rank says when it can serve."""
    return RankReady(
        rank=rank,
        rank_port=4000 + rank,
        session=f"127.0.0.1:{5000 + rank}",
        transport="loopback",
        max_tokens=max_tokens,
        pages=64,
        page_size=16,
        fingerprint=FINGERPRINT,
        shape=shape,
    )


def worker_status(*, rooms: int = 0, epoch: int = 1) -> WorkerStatus:
    """Return a status as a rank gives it."""
    return WorkerStatus(
        instance="d0",
        role="decode",
        epoch=epoch,
        state="ready",
        version="",
        up_s=1.0,
        model="tiny",
        transport="loopback",
        rooms={"prealloc": 0, "running": rooms},
        pages={"free": 60, "request": 4},
        pages_total=64,
        rows={"free": 8},
        peers={"p0": "alive 1"},
        counters={"rooms_ended_total": 3.0},
    )


class FakeRank:
    """A rank's end of the link, played by hand."""

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._heard: list[ToRank] = []
        self.answers = True  # to questions, with a plain status

    async def say(self, message: ToFront) -> None:
        """Tell the front."""
        await self._socket.send(encode_link(message))

    async def say_raw(self, raw: bytes) -> None:
        """Tell the front something that may be no message."""
        await self._socket.send(raw)

    async def output(
        self,
        to: Submit,
        tokens: Sequence[int | TokenOut] = (),
        finish: FinishReason | None = None,
        **more: object,
    ) -> None:
        """Say what one step brought for the room of ``to``."""
        out = tuple(t if isinstance(t, TokenOut) else TokenOut(t) for t in tokens)
        await self.say(Outputs((Output(to.room, to.attempt, out, finish, **more),)))  # type: ignore[arg-type]

    async def hear(self, kind: type[M]) -> M:
        """Return the next message of a kind; others wait, questions are answered."""
        for n, message in enumerate(self._heard):
            if isinstance(message, kind):
                del self._heard[n]
                return message
        async with asyncio.timeout(HEAR_S):
            while True:
                message = decode_to_rank(await self._socket.recv())
                if isinstance(message, kind):
                    return message
                if not (isinstance(message, Ask) and self.answers):
                    self._heard.append(message)
                else:
                    await self.say(Snapshot(message.question, snapshot(message)))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def snapshot(ask: Ask, rooms: int = 0) -> dict[str, object]:
    """Return plain answers to a question."""
    body: dict[str, object]
    if ask.what is AskFor.STATUS:
        body = {"status": worker_status(rooms=rooms)}
    elif ask.what is AskFor.ROOMS:
        body = {"rooms": [RoomRow(7, 1, "running", 0.5, "p0", 3, 1)]}
    else:
        lines = (Line(1.0, "", "prealloc", "submitted"),)
        stories = [Story(7, 1, "d0", "decode", lines, True)] if ask.room == 7 else []
        body = {"stories": stories}
    plain: dict[str, object] = msgspec.to_builtins(body)
    return plain


class AutoRank:
    """Answers by itself, for tests with a process."""

    def __init__(self, socket: zmq.asyncio.Socket, flags: argparse.Namespace) -> None:
        self._socket = socket
        self._flags = flags
        self._rooms: dict[RoomKey, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Serve until told to stop."""
        if self._flags.exit_code is not None:
            os._exit(self._flags.exit_code)
        if self._flags.mute:
            await asyncio.Event().wait()
        shape = Shape(attn_tp_size=self._flags.ranks)
        await self._say(rank_ready(self._flags.rank, shape=shape))
        while True:
            message = decode_to_rank(await self._socket.recv())
            match message:
                case Submit():
                    self._begin(message)
                case Cancel() | Finish():
                    task = self._rooms.pop(RoomKey(message.room, message.attempt), None)
                    if task is not None:
                        task.cancel()
                case Ask():
                    body = snapshot(message, len(self._rooms))
                    await self._say(Snapshot(message.question, body))
                case Drain():
                    pass
                case Stop():
                    return
                case _:
                    pass

    def _begin(self, submit: Submit) -> None:
        key = RoomKey(submit.room, submit.attempt)
        self._rooms[key] = asyncio.create_task(self._answer(key, submit))

    async def _answer(self, key: RoomKey, submit: Submit) -> None:
        if self._flags.tokens == "hold":
            await asyncio.Event().wait()
        ids = itertools.cycle(int(one) for one in self._flags.tokens.split(","))
        wanted = submit.sampling.max_tokens
        for n in range(wanted):
            finish = FinishReason.LENGTH if n == wanted - 1 else None
            tokens = (TokenOut(next(ids)),)
            await self._say(Outputs((Output(key.room, key.attempt, tokens, finish),)))
        self._rooms.pop(key, None)

    async def _say(self, message: ToFront) -> None:
        await self._socket.send(encode_link(message))


async def main() -> None:
    """Be a rank process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", required=True)
    parser.add_argument("--tokens", default="104,105")
    parser.add_argument("--exit-code", type=int, help="end at once")
    parser.add_argument("--mute", action="store_true", help="never be ready")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--pid-file", type=Path)
    flags = parser.parse_args()
    if flags.pid_file:
        flags.pid_file.write_text(str(os.getpid()))
    loop = asyncio.get_running_loop()
    orphaned = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: os.read(0, 1) or orphaned.set())
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PAIR)
    socket.connect(flags.link)
    served = asyncio.create_task(AutoRank(socket, flags).serve())
    alone = asyncio.create_task(orphaned.wait())
    await asyncio.wait({served, alone}, return_when=asyncio.FIRST_COMPLETED)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())

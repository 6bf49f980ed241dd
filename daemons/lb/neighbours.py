"""Processes that share a port tell each other how many rooms they have in flight.

- What others have is added to our own counts, so policies and limits see the sum.
- A word is sent when counts changed, at most every ``TELL_S``, and every ``ANYWAY_S`` again; who
  has said nothing for ``GONE_S`` has no rooms. Between two words a limit may be overrun by what
  came in meanwhile: the workers themselves admit exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from daemons.lb.fleet import Fleet, Life

TELL_S = 0.02
ANYWAY_S = 0.5
GONE_S = 3.0
DATAGRAM_BYTES = 64 << 10


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What one process has in flight."""

    sender: int
    loads: list[tuple[str, int, int, int]]  # instance, epoch, rooms, tokens


@dataclass(slots=True)
class Elsewhere:
    """The last word of another process."""

    rooms: Counter[Life] = field(default_factory=Counter)
    tokens: Counter[Life] = field(default_factory=Counter)
    at_s: float = 0.0


@dataclass(slots=True)
class Neighbours:
    """The counts of all processes but this one, within those of ``fleet``."""

    own: int
    fleet: Fleet
    freed: Callable[[], None] = lambda: None  # called when others have fewer rooms
    others: dict[int, Elsewhere] = field(default_factory=dict)

    def hear(self, word: Word, now_s: float) -> None:
        """Take another process's word."""
        before = self.others.get(word.sender, Elsewhere())
        after = Elsewhere(at_s=now_s)
        for instance, epoch, rooms, tokens in word.loads:
            after.rooms[instance, epoch] = rooms
            after.tokens[instance, epoch] = tokens
        self.others[word.sender] = after
        self._count(before, after)

    def forget(self, now_s: float) -> None:
        """Let go of what silent processes had."""
        for sender, other in list(self.others.items()):
            if now_s - other.at_s > GONE_S:
                del self.others[sender]
                self._count(other, Elsewhere())

    def word(self) -> Word:
        """Return what this process alone has in flight."""
        rooms, tokens = Counter(self.fleet.rooms), Counter(self.fleet.tokens)
        for other in self.others.values():
            rooms.subtract(other.rooms)
            tokens.subtract(other.tokens)
        return Word(
            self.own,
            [(*life, count, max(tokens[life], 0)) for life, count in rooms.items() if count > 0],
        )

    def _count(self, before: Elsewhere, after: Elsewhere) -> None:
        rooms, tokens = self.fleet.rooms, self.fleet.tokens
        for life in {*before.rooms, *after.rooms}:
            rooms[life] += after.rooms[life] - before.rooms[life]
            tokens[life] += after.tokens[life] - before.tokens[life]
            if rooms[life] <= 0:
                del rooms[life]
                del tokens[life]
        if before.rooms.total() > after.rooms.total():
            self.freed()


def place(folder: Path, number: int) -> Path:
    """Return where a process hears of the others."""
    return folder / f"rooms-{number}"


async def keep_telling(neighbours: Neighbours, folder: Path, count: int) -> NoReturn:
    """Tell and hear until cancelled."""
    loop = asyncio.get_running_loop()
    others = [str(place(folder, n)) for n in range(count) if n != neighbours.own]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.setblocking(False)
        place(folder, neighbours.own).unlink(missing_ok=True)
        ear.bind(str(place(folder, neighbours.own)))
        loop.add_reader(ear.fileno(), _hear, ear, neighbours, loop.time)
        said, said_s = b"", 0.0
        try:
            while True:
                await asyncio.sleep(TELL_S)
                neighbours.forget(loop.time())
                word = msgspec.json.encode(neighbours.word())
                if word == said and loop.time() - said_s < ANYWAY_S:
                    continue
                said, said_s = word, loop.time()
                for other in others:
                    with contextlib.suppress(OSError):  # it is not up, or slow
                        ear.sendto(word, other)
        finally:
            loop.remove_reader(ear.fileno())


def _hear(ear: socket.socket, neighbours: Neighbours, clock: Callable[[], float]) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            raw = ear.recv(DATAGRAM_BYTES)
            with contextlib.suppress(msgspec.DecodeError):
                neighbours.hear(msgspec.json.decode(raw, type=Word), clock())

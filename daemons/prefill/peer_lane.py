"""The thread that writes to one decode: rooms in turn, each room's writes in their order.

Of the rooms that can go on the one whose client's time ends first goes first, until it has had
``QUANTUM_BYTES`` more than another that waits: a huge room does not keep small ones waiting.

A write may be carried out in parts, as a forward makes them ready. While it waits for the next one
others are served, so that nobody stands behind a forward that is not his. Where nobody is to be
served, what waits is prepared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from daemons.prefill.commands import WriteKV
from daemons.protocol.ids import RoomKey
from daemons.runtime.lanes import Post
from daemons.transfer.backend import CopyTable
from daemons.transfer.itinerary import Itinerary

LOOK_S = 0.0005  # a write that waits for a layer looks again after so long, at first
LOOK_GROWS = 1.5
LOOK_LONGEST_S = 0.004
QUANTUM_BYTES = 32 << 20  # of a room, before another one has its turn


@dataclass(slots=True, eq=False)
class Task:
    """A write, and how far it is."""

    command: WriteKV
    layers: int = 0  # of its pages, those that have been acknowledged
    slices: deque[CopyTable] = field(default_factory=deque)  # that wait, of ``planned`` layers
    planned: int = 0
    itinerary: Itinerary | None = None  # None: it has not been planned
    is_prepared: bool = False  # for its next turn, as far as can be
    ready_s: float | None = None  # since when something could be done for it
    served_s: float = field(default_factory=monotonic)  # when it came, or was written last
    sent_bytes: int = 0
    early_bytes: int = 0
    wire_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Carrying:
    """How a write is carried out."""

    is_ready: Callable[[Task], bool]  # whether there is something to do for it
    prepare: Callable[[Task], None]  # do what can be done before that; ``advance`` meets it undone
    advance: Callable[[Task], object | None]  # do it; the event when the write is over
    broken: Callable[[Task, str], object]  # the event when ``advance`` raised


class PeerLane:
    """One thread and the writes to one decode."""

    def __init__(self, name: str, carrying: Carrying, post: Post) -> None:
        self._carrying = carrying
        self._post = post
        self._tasks: list[Task] = []
        self._served: dict[RoomKey, int] = {}  # bytes of rooms that are here
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, command: WriteKV) -> None:
        """Queue a write."""
        with self._changed:
            self._tasks.append(Task(command, ready_s=None if command.step else monotonic()))
            if command.key not in self._served:
                self._served[command.key] = min(self._served.values(), default=0)
            self._changed.notify()

    def look(self) -> None:
        """Something else has changed that a write may wait for."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """End after the writes that are here."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            task, is_ready = turn
            if is_ready:
                self._advance(task)
            else:
                self._prepare(task)

    def _prepare(self, task: Task) -> None:
        task.is_prepared = True
        with suppress(Exception):  # ``advance`` meets it again, and tells
            self._carrying.prepare(task)

    def _advance(self, task: Task) -> None:
        before_bytes = task.sent_bytes
        try:
            event = self._carrying.advance(task)
        except Exception as error:  # noqa: BLE001 - the lane lives on, the room's owner hears
            event = self._carrying.broken(task, f"{type(error).__name__}: {error}")
        with self._changed:
            self._served[task.command.key] += task.sent_bytes - before_bytes
            task.is_prepared = False  # for what comes next of it
            if event is not None:
                self._remove(task)
        if event is not None:
            self._post(event)

    def _remove(self, task: Task) -> None:
        self._tasks.remove(task)
        if not any(other.command.key == task.command.key for other in self._tasks):
            del self._served[task.command.key]

    def _next(self) -> tuple[Task, bool] | None:
        """Wait for a write that can go on, or be prepared, and say which; None at the end."""
        look_s = LOOK_S
        with self._changed:
            while True:
                if (task := self._ready()) is not None:
                    return task, True
                if (task := next((t for t in self._tasks if not t.is_prepared), None)) is not None:
                    return task, False
                if not self._tasks and self._closing:
                    return None
                self._changed.wait(look_s if self._tasks else None)
                look_s = min(look_s * LOOK_GROWS, LOOK_LONGEST_S)

    def _ready(self) -> Task | None:
        """Return the write whose turn it is, of those that can go on."""
        firsts: dict[RoomKey, Task] = {}
        for task in self._tasks:
            firsts.setdefault(task.command.key, task)
        ready = [task for task in firsts.values() if self._carrying.is_ready(task)]
        for task in ready:
            task.ready_s = task.ready_s or monotonic()
        return min(ready, key=self._turn, default=None)

    def _turn(self, task: Task) -> tuple[int, float]:
        key = task.command.key
        return self._served[key] // QUANTUM_BYTES, task.command.by_s

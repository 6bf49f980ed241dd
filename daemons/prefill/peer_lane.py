"""The thread that writes to one decode: rooms in turn, each room's writes in their order.

A write may be carried out in parts, as a forward makes them ready. While it waits for the next one
others are served, so that nobody stands behind a forward that is not his.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from daemons.prefill.commands import WriteKV
from daemons.protocol.ids import RoomKey
from daemons.runtime.lanes import Post

LOOK_S = 0.0005  # a write that waits for a layer looks again after so long, at first
LOOK_GROWS = 1.5
LOOK_LONGEST_S = 0.004


@dataclass(slots=True, eq=False)
class Task:
    """A write, and how far it is."""

    command: WriteKV
    layers: int = 0  # of its pages, those that have been acknowledged
    sent_bytes: int = 0
    early_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Carrying:
    """How a write is carried out."""

    is_ready: Callable[[Task], bool]  # whether there is something to do for it
    advance: Callable[[Task], object | None]  # do it; the event when the write is over
    broken: Callable[[Task, str], object]  # the event when ``advance`` raised


class PeerLane:
    """One thread and the writes to one decode."""

    def __init__(self, name: str, carrying: Carrying, post: Post) -> None:
        self._carrying = carrying
        self._post = post
        self._tasks: list[Task] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, command: WriteKV) -> None:
        """Queue a write."""
        with self._changed:
            self._tasks.append(Task(command))
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
        while (task := self._next()) is not None:
            try:
                event = self._carrying.advance(task)
            except Exception as error:  # noqa: BLE001 - the lane lives on, the room's owner hears
                event = self._carrying.broken(task, f"{type(error).__name__}: {error}")
            if event is not None:
                with self._changed:
                    self._tasks.remove(task)
                self._post(event)

    def _next(self) -> Task | None:
        """Wait for a write that can go on; None at the end."""
        look_s = LOOK_S
        with self._changed:
            while True:
                if (task := self._ready()) is not None:
                    return task
                if not self._tasks and self._closing:
                    return None
                self._changed.wait(look_s if self._tasks else None)
                look_s = min(look_s * LOOK_GROWS, LOOK_LONGEST_S)

    def _ready(self) -> Task | None:
        rooms: set[RoomKey] = set()
        for task in self._tasks:
            if task.command.key not in rooms and self._carrying.is_ready(task):
                return task
            rooms.add(task.command.key)
        return None

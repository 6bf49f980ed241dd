"""The thread that owns the engine: it does one command after the other, in their order."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol

from daemons.engine.step import (
    Begin,
    End,
    Item,
    Keep,
    Kept,
    Restore,
    Restored,
    Result,
    Run,
    Sequence,
    StepDone,
    StepFailed,
)
from daemons.protocol.ids import RoomKey
from daemons.runtime.lanes import Job, Lane
from daemons.runtime.reactor import Wake


class Steps(Protocol):
    """An engine, as its lane sees it."""

    def begin(self, sequence: Sequence) -> None:
        """Make a room known."""
        ...

    def end(self, key: RoomKey) -> None:
        """Forget a room."""
        ...

    def forward(self, items: Several[Item]) -> list[Result]:
        """Run one batch."""
        ...

    def keep(self, key: RoomKey, pages: Several[int]) -> None:
        """Copy a room's pages into host memory."""
        ...

    def restore(self, key: RoomKey, pages: Several[int]) -> None:
        """Copy what is kept of a room into as many pages."""
        ...


class ForwardLane:
    """Carries out Begin, Run, End, Keep and Restore; answers a Run, a Keep and a Restore."""

    def __init__(self, engine: Steps, wake: Wake) -> None:
        self._engine = engine
        self._lane = Lane("forward", wake.post)

    def execute(self, command: Begin | Run | End | Keep | Restore) -> None:
        """Queue a command."""
        match command:
            case Begin():
                self._lane.submit(Job(lambda: self._begin(command), lambda _: None))
            case Run():
                keys = tuple(item.key for item in command.items)
                self._lane.submit(
                    Job(lambda: self._run(command), lambda why: StepFailed(keys, why))
                )
            case End():
                self._lane.submit(Job(lambda: self._engine.end(command.key), lambda _: None))
            case Keep(key, pages):
                self._lane.submit(Job(lambda: self._keep(key, pages), lambda why: Kept(key, why)))
            case Restore(key, pages):
                self._lane.submit(
                    Job(lambda: self._restore(key, pages), lambda why: Restored(key, why))
                )

    def _begin(self, command: Begin) -> None:
        self._engine.begin(command.sequence)

    def _run(self, command: Run) -> StepDone:
        return StepDone(tuple(self._engine.forward(list(command.items))))

    def _keep(self, key: RoomKey, pages: tuple[int, ...]) -> Kept:
        self._engine.keep(key, pages)
        return Kept(key)

    def _restore(self, key: RoomKey, pages: tuple[int, ...]) -> Restored:
        self._engine.restore(key, pages)
        return Restored(key)

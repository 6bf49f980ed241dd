"""The thread that owns the engine: begins, forwards and ends in the order of the commands."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol

from daemons.engine.step import Begin, End, Item, Result, Run, Sequence, StepDone, StepFailed
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


class ForwardLane:
    """Carries out Begin, Run and End; answers each Run with StepDone or StepFailed."""

    def __init__(self, engine: Steps, wake: Wake) -> None:
        self._engine = engine
        self._lane = Lane("forward", wake.post)

    def execute(self, command: Begin | Run | End) -> None:
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

    def _begin(self, command: Begin) -> None:
        self._engine.begin(command.sequence)

    def _run(self, command: Run) -> StepDone:
        return StepDone(tuple(self._engine.forward(list(command.items))))

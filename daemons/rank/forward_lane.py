"""The thread that owns the engine: it does one command after the other, in their order."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Protocol

from daemons.engine.progress import Progress
from daemons.engine.step import (
    Begin,
    End,
    Item,
    Keep,
    Kept,
    Prepare,
    Prepared,
    Restore,
    Restored,
    Result,
    Run,
    Sequence,
    StepDone,
    StepFailed,
)
from daemons.protocol.generate import Grammar
from daemons.protocol.ids import RoomKey
from daemons.runtime.lanes import Job, Lane
from daemons.runtime.reactor import Wake


class Steps(Protocol):
    """An engine, as its lane sees it."""

    def prepare(self, grammar: Grammar, told: Callable[[], None]) -> None:
        """Have a grammar compiled, then call ``told``."""
        ...

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
    """Carries out an engine's commands, in order; answers all but Begin and End."""

    def __init__(self, engine: Steps, wake: Wake, progress: Progress | None = None) -> None:
        """``progress`` is told of numbered forwards; the engine tells it of their layers."""
        self._engine = engine
        self._progress = progress
        self._not_begun: dict[RoomKey, str] = {}  # why, of rooms whose begin raised
        self._post = wake.post
        self._lane = Lane("forward", wake.post)

    def execute(self, command: Prepare | Begin | Run | End | Keep | Restore) -> None:
        """Queue a command."""
        match command:
            case Prepare(key, grammar):
                self._lane.submit(Job(lambda: self._prepare(key, grammar), lambda _: Prepared(key)))
            case Begin():
                self._lane.submit(Job(lambda: self._begin(command), lambda _: None))
            case Run():
                keys = tuple(item.key for item in command.items)
                self._lane.submit(
                    Job(lambda: self._run(command), lambda why: StepFailed(keys, why))
                )
            case End():
                self._lane.submit(Job(lambda: self._end(command.key), lambda _: None))
            case Keep(key, pages):
                self._lane.submit(Job(lambda: self._keep(key, pages), lambda why: Kept(key, why)))
            case Restore(key, pages):
                self._lane.submit(
                    Job(lambda: self._restore(key, pages), lambda why: Restored(key, why))
                )

    def _prepare(self, key: RoomKey, grammar: Grammar) -> None:
        """Answer when the grammar is there; that it is not to be had is told by a step."""
        self._engine.prepare(grammar, lambda: self._post(Prepared(key)))

    def _begin(self, command: Begin) -> None:
        """Begin a room; what is raised is told as the error of its first step."""
        key = command.sequence.key
        self._not_begun.pop(key, None)
        try:
            self._engine.begin(command.sequence)
        except Exception as error:  # noqa: BLE001 - the room hears it, the lane goes on
            self._not_begun[key] = f"{type(error).__name__}: {error}"

    def _end(self, key: RoomKey) -> None:
        self._not_begun.pop(key, None)
        self._engine.end(key)

    def _run(self, command: Run) -> StepDone:
        results = self._forward(
            command.step, [i for i in command.items if i.key not in self._not_begun]
        )
        broken = [Result(i.key, error=why) for i in command.items if (why := self._why(i.key))]
        return StepDone((*results, *broken))

    def _forward(self, step: int, items: list[Item]) -> list[Result]:
        progress = self._progress
        if progress is None or not step:
            return self._engine.forward(items)
        progress.begin(step)
        try:
            results = self._engine.forward(items)
        except BaseException:
            progress.broke(step)
            raise
        progress.end(step)
        return results

    def _why(self, key: RoomKey) -> str:
        return self._not_begun.get(key, "")

    def _keep(self, key: RoomKey, pages: tuple[int, ...]) -> Kept:
        self._engine.keep(key, pages)
        return Kept(key)

    def _restore(self, key: RoomKey, pages: tuple[int, ...]) -> Restored:
        self._engine.restore(key, pages)
        return Restored(key)

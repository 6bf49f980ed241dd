"""The thread that owns the engine: begins, forwards and ends in the order of the commands."""

from __future__ import annotations

from daemons.engine.engine import Engine
from daemons.engine.step import Begin, End, Run, StepDone, StepFailed
from daemons.runtime.lanes import Job, Lane
from daemons.runtime.reactor import Wake


class ForwardLane:
    """Carries out Begin, Run and End; answers each Run with StepDone or StepFailed."""

    def __init__(self, engine: Engine, wake: Wake) -> None:
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

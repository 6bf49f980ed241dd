"""A fake engine: a forward takes a while, reads and writes marks, and makes known tokens.

Token ``i`` of a room depends on room, attempt and ``i`` alone, so that the text can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daemons.engine.step import Begin, End, Item, Result, Run, Sequence, StepDone, StepFailed
from daemons.kv.ledger import Owner
from daemons.protocol.generate import Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.sim.invariants import Violation

if TYPE_CHECKING:
    from tests.sim.process import Process


def token(key: RoomKey, index: int) -> int:
    """Return output token ``index`` of a room."""
    return (key.room * 31 + key.attempt * 7 + index * 13) % 997


def text(key: RoomKey, sampling: Sampling) -> list[int]:
    """Return all output tokens of a room that nothing disturbs."""
    out: list[int] = []
    while len(out) < sampling.max_tokens:
        out.append(token(key, len(out)))
        if out[-1] in sampling.ending_token_ids:
            break
    return out


@dataclass(slots=True)
class Engine:
    """The engine of one process."""

    process: Process
    sequences: dict[RoomKey, Sequence] = field(default_factory=dict)
    running: bool = False

    def do(self, command: Begin | Run | End) -> None:
        """Obey, or say what is wrong with the order of the commands."""
        match command:
            case Begin(sequence):
                if sequence.key in self.sequences:
                    raise Violation(f"{self.process.me} begins {sequence.key} twice")
                self.sequences[sequence.key] = sequence
            case End(key):
                if self.sequences.pop(key, None) is None:
                    raise Violation(f"{self.process.me} ends {key}, which has not begun")
            case Run(items):
                if self.running:
                    raise Violation(f"{self.process.me} runs two forwards at once")
                self.running = True
                sequences = {item.key: self.sequences.get(item.key) for item in items}
                for item in items:
                    self._check(item, sequences[item.key])
                world = self.process.world
                seconds = world.rng.random() * 2 * world.plan.step_s
                world.after(seconds, self._complete, items, sequences)

    def _complete(self, items: tuple[Item, ...], sequences: dict[RoomKey, Sequence]) -> None:
        process, world = self.process, self.process.world
        if not process.alive:
            return
        if process.when_thawed(lambda: self._complete(items, sequences)):
            return
        self.running = False
        plan, rng = world.plan, world.rng
        if world.faulty and plan.step_failure and rng.random() < plan.step_failure:
            process.deliver(StepFailed(tuple(item.key for item in items), "the forward broke"))
            return
        results = []
        for item in items:
            self._check(item, sequences[item.key])
            process.memory.write(item.key, item.pages, item.start, len(item.tokens))
            if world.faulty and plan.room_error and rng.random() < plan.room_error:
                results.append(Result(item.key, error="this room broke"))
            else:
                results.append(Result(item.key, self._token(item, sequences[item.key])))
        process.deliver(StepDone(tuple(results)))

    def _token(self, item: Item, sequence: Sequence) -> TokenOut | None:
        if not item.samples:
            return None
        return TokenOut(token(item.key, item.start + len(item.tokens) - len(sequence.prompt)))

    def _check(self, item: Item, sequence: Sequence | None) -> None:
        """A forward runs the right tokens and touches memory of its own room only."""
        process, key = self.process, item.key
        if sequence is None:
            raise Violation(f"{process.me} runs {key}, which the engine does not know")
        end, prompt = item.start + len(item.tokens), len(sequence.prompt)
        right = tuple(
            sequence.prompt[at] if at < prompt else token(key, at - prompt)
            for at in range(item.start, end)
        )
        if item.tokens != right or not item.tokens or item.samples is not (end >= prompt):
            raise Violation(f"{process.me} runs wrong tokens for {key}: {item}")
        for page in item.pages:
            if process.core.pages.owner(page) != (Owner.REQUEST, key):
                owner = process.core.pages.owner(page)
                raise Violation(f"{process.me} runs {key} on page {page} of {owner}")
        if not process.memory.holds(key, item.pages, item.start):
            raise Violation(f"{process.me} reads KV that is not {key}'s own: {item}")

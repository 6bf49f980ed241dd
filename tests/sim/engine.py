"""A fake engine: it does one thing after the other, reads and writes marks, makes known tokens.

Token ``i`` of a room depends on room, attempt and ``i`` alone, so that the text can be checked. A
step may wait behind another one, and go on from what that chooses; it is looked at when it is run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.engine.step import (
    NEWEST,
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
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.generate import Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.sim.invariants import Violation, check_own, check_readable
from tests.sim.memory import marks

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
    prepared: set[RoomKey] = field(default_factory=set)  # whose grammar is compiled
    contents: dict[RoomKey, list[int]] = field(default_factory=dict)  # marks of a whole text
    starts: dict[RoomKey, int] = field(default_factory=dict)  # of the first forward of a room
    kept: dict[RoomKey, list[list[int]]] = field(default_factory=dict)  # pages of marks
    newest: dict[RoomKey, tuple[int, int]] = field(default_factory=dict)  # its place, the token
    running: int = 0  # forwards that wait, or are under way
    written: int = 0  # the last numbered forward whose marks are in memory, or that broke
    broken: set[int] = field(default_factory=set)  # numbered forwards
    _waiting: deque[Run | Keep | Restore] = field(default_factory=deque)  # the first is under way

    def do(self, command: Prepare | Begin | Run | End | Keep | Restore) -> None:
        """Obey, or say what is wrong with the order of the commands."""
        match command:
            case Prepare(key, _):
                world = self.process.world
                world.after(world.rng.random() * 4 * world.plan.step_s, self._prepared, key)
            case Begin(sequence):
                if sequence.key in self.sequences:
                    raise Violation(f"{self.process.me} begins {sequence.key} twice")
                self.sequences[sequence.key] = sequence
                if sequence.output:
                    place = len(sequence.prompt) + len(sequence.output) - 1
                    self.newest[sequence.key] = place, sequence.output[-1]
                self.contents[sequence.key] = self._content(sequence)
            case End(key):
                if self.sequences.pop(key, None) is None:
                    raise Violation(f"{self.process.me} ends {key}, which has not begun")
                self.kept.pop(key, None)
                self.newest.pop(key, None)
            case Run(items):
                ahead = self.process.core.config.engine.steps_ahead
                if self.running > (ahead if isinstance(self.process.core, DecodeCore) else 0):
                    raise Violation(f"{self.process.me} has {self.running + 1} forwards at once")
                self.process.world.seen["steps ahead"] += self.running > 0
                self.running += 1
                copied = {c.key for c in self._waiting if isinstance(c, Keep | Restore)}
                for item in items:
                    self._check_prepared(item)
                    if item.key not in self.sequences:
                        raise Violation(f"{self.process.me} runs {item.key}, which is not known")
                    if item.key in copied:
                        raise Violation(f"{self.process.me} runs {item.key} while it is copied")
                    self.starts.setdefault(item.key, item.start)
                    self._count_windows(item)
                    self._check_pages(item)
                self._queue(command)
            case Keep() | Restore():
                self._queue(command)

    def _count_windows(self, item: Item) -> None:
        core, seen = self.process.core, self.process.world.seen
        if item.window_first > 0:
            seen["steps of which a window has moved on"] += 1
        if item.start and self.starts[item.key] == item.start and isinstance(core, PrefillCore):
            seen["prompts begun from cached window pages"] += bool(item.window)

    def _check_prepared(self, item: Item) -> None:
        sequence = self.sequences.get(item.key)
        if sequence and sequence.sampling.grammar and item.key not in self.prepared:
            raise Violation(f"{self.process.me} has a batch wait for the grammar of {item.key}")

    def _prepared(self, key: RoomKey) -> None:
        process = self.process
        if process.alive and not process.when_thawed(partial(self._prepared, key)):
            self.prepared.add(key)
            process.deliver(Prepared(key))

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nothing is kept."""
        return not self._waiting and not self.kept

    def _queue(self, command: Run | Keep | Restore) -> None:
        self._waiting.append(command)
        if len(self._waiting) == 1:
            self._begin_next()

    def _begin_next(self) -> None:
        world = self.process.world
        if self._waiting:
            world.after(world.rng.random() * world.plan.step_s, self._compute)

    def _compute(self) -> None:
        """Half of the time is over: a forward has written its marks, if it does not break first."""
        process, world = self.process, self.process.world
        if not process.alive or process.when_thawed(self._compute):
            return
        report: StepDone | StepFailed | None = None
        if isinstance(command := self._waiting[0], Run):
            report = self._forward(command)
        world.after(world.rng.random() * world.plan.step_s, self._complete, report)

    def _complete(self, report: StepDone | StepFailed | None) -> None:
        process = self.process
        if not process.alive or process.when_thawed(partial(self._complete, report)):
            return
        command = self._waiting.popleft()
        self._begin_next()
        match command:
            case Run():
                assert report is not None
                self._report(command, report)
            case Keep(key, pages):
                self._copy_out(key, pages)
            case Restore(key, pages):
                self._copy_in(key, pages)

    def _copy_out(self, key: RoomKey, pages: tuple[int, ...]) -> None:
        process = self.process
        check_readable(process, key, pages)
        process.world.seen["rooms retracted"] += 1
        if self._breaks():
            process.deliver(Kept(key, "no host memory"))
            return
        if key in self.kept:
            raise Violation(f"{process.me} keeps {key} twice")
        self.kept[key] = [process.memory.page(page) for page in pages]
        process.deliver(Kept(key))

    def _copy_in(self, key: RoomKey, pages: tuple[int, ...]) -> None:
        process = self.process
        check_own(process, key, pages)
        if self._breaks():
            process.deliver(Restored(key, "the copy broke"))
            return
        kept = self.kept.pop(key, [])
        if len(kept) != len(pages):
            raise Violation(f"{process.me} restores {key} to {pages}, kept are {len(kept)} pages")
        for page, content in zip(pages, kept, strict=True):
            process.memory.put_page(page, content)
        process.deliver(Restored(key))

    def _breaks(self) -> bool:
        world = self.process.world
        rate = world.plan.copy_failure
        return world.faulty and rate > 0 and world.rng.random() < rate

    def _report(self, run: Run, report: StepDone | StepFailed) -> None:
        """A forward is over; what it used was its own until now."""
        self.running -= 1
        for item in run.items:
            self._check_used(item)
        if run.step and isinstance(report, StepFailed):
            self.broken.add(run.step)
            self.written = run.step
        self.process.deliver(report)

    def _forward(self, run: Run) -> StepDone | StepFailed:
        process, world = self.process, self.process.world
        plan, rng, items = world.plan, world.rng, run.items
        failed = StepFailed(tuple(item.key for item in items), "the forward broke")
        breaks = world.faulty and plan.step_failure and rng.random() < plan.step_failure
        if breaks and rng.random() < 0.5:
            return failed
        results = []
        for item in items:
            self._check_used(item)
            if item.tokens == (NEWEST,) and not self._may_go_on(item):
                results.append(Result(item.key, error="its text has ended, or was broken off"))
                continue
            self._check(item, self.sequences[item.key])
            content = self.contents[item.key]
            process.memory.write(content, item)
            if world.faulty and plan.room_error and rng.random() < plan.room_error:
                results.append(Result(item.key, error="this room broke"))
            else:
                results.append(self._result(item, self.sequences[item.key]))
        self.written = max(self.written, run.step)
        return failed if breaks else StepDone(tuple(results))

    def _check_used(self, item: Item) -> None:
        if item.key not in self.sequences:
            raise Violation(f"{self.process.me} has ended {item.key} while it is run")
        self._check_pages(item)

    def _may_go_on(self, item: Item) -> bool:
        """Say whether the room's newest token is the one that the item is meant to run."""
        place, newest = self.newest.get(item.key, (-1, -1))
        sequence = self.sequences[item.key]
        return place == item.start and newest not in sequence.sampling.ending_token_ids

    def _result(self, item: Item, sequence: Sequence) -> Result:
        end, prompt = item.start + len(item.tokens), sequence.prompt
        judged: tuple[TokenOut, ...] = ()
        if sequence.sampling.prompt_logprobs is not None:
            judged = tuple(TokenOut(id_) for id_ in prompt[item.start : end])
        if not item.samples:
            return Result(item.key, None, judged)
        chosen = token(item.key, end - len(prompt))
        self.newest[item.key] = end, chosen
        return Result(item.key, TokenOut(chosen), judged)

    def _check(self, item: Item, sequence: Sequence) -> None:
        """A forward runs the right tokens and touches memory of its own room only."""
        process, key = self.process, item.key
        tokens = item.tokens if item.tokens != (NEWEST,) else (self.newest[key][1],)
        end, prompt = item.start + len(item.tokens), len(sequence.prompt)
        right = tuple(
            sequence.prompt[at] if at < prompt else token(key, at - prompt)
            for at in range(item.start, end)
        )
        if tokens != right or not tokens or item.samples is not (end >= prompt):
            raise Violation(f"{process.me} runs wrong tokens for {key}: {item}")
        if not process.memory.holds(self.contents[key], item, process.world.plan.window):
            raise Violation(f"{process.me} reads KV that is not {key}'s text: {item}")

    def _check_pages(self, item: Item) -> None:
        """What is written is the room's own, what is read may be shared."""
        process, key = self.process, item.key
        written = item.start // process.memory.page_size
        check_readable(process, key, item.pages[:written])
        check_own(process, key, item.pages[written:])
        behind = max(0, written - item.window_first)
        check_readable(process, key, item.window[:behind], process.core.window)
        check_own(process, key, item.window[behind:], process.core.window)

    def _content(self, sequence: Sequence) -> list[int]:
        """Return the marks of a text and all that may ever follow."""
        key, world = sequence.key, self.process.world
        output = (token(key, index) for index in range(sequence.sampling.max_tokens))
        model = world.fingerprint_of(self.process.instance).model
        salt = world.front.rooms[key].submit.cache_salt
        return marks(model, salt, (*sequence.prompt, *output))

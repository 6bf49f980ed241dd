"""The one door for stage changes: checks each step, keeps the stories, failed ones longer.

Pure: times come in as arguments. A step that the table does not allow raises with the story.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from daemons.protocol.causes import Failure
from daemons.protocol.ids import RoomKey
from daemons.protocol.story import STAGE_BUCKETS_S, Line, RoomRow, StageTimes, Story

LINES_LIMIT = 400  # per room; long stories keep their beginning and drop later notes


class WrongStep(AssertionError):
    """A stage change that the table of the daemon does not allow."""


@dataclass(slots=True)
class Tale:
    """A story while it is written."""

    key: RoomKey
    stage: str
    entered_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    peer: str = ""
    failure: Failure | None = None
    open: bool = True
    lines: list[Line] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


class Recorder:
    """Stories of the rooms of one daemon, bounded."""

    def __init__(
        self,
        instance: str,
        role: str,
        steps: Mapping[str, frozenset[str]],
        *,
        keep: int = 2000,
        keep_failed: int = 2000,
    ) -> None:
        """``steps`` maps a stage to those it may lead to; "" is both before and after all."""
        self._instance = instance
        self._role = role
        self._steps = steps
        self._limits = {False: keep, True: keep_failed}
        self._times: dict[str, tuple[list[int], list[float]]] = {}  # by bucket, and their sum
        self._open: dict[RoomKey, Tale] = {}
        self._ended: dict[bool, OrderedDict[RoomKey, Tale]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }

    @property
    def times(self) -> dict[str, StageTimes]:
        """Return how long rooms were in each stage that some have left."""
        return {
            stage: StageTimes(tuple(counts), sum_s)
            for stage, (counts, (sum_s,)) in self._times.items()
        }

    def enter(
        self,
        key: RoomKey,
        stage: str,
        because: str,
        at_s: float,
        *,
        tokens: int = 0,
        sent_bytes: int = 0,
        peer: str = "",
    ) -> Tale:
        """Move a room into ``stage`` (a new room comes from ""); returns its tale for facts.

        Raises:
            WrongStep: the table does not lead from the room's stage to this one.
        """
        tale = self._open.get(key)
        left = tale.stage if tale else ""
        if stage not in self._steps.get(left, frozenset()):
            told = self._told(tale)
            raise WrongStep(f"room {key}: no step from {left!r} to {stage!r} ({because}); {told}")
        if tale is None:
            tale = Tale(key, stage, at_s)
            self._open[key] = tale
        tale.peer = peer or tale.peer
        tale.lines.append(Line(at_s, left, stage, because, tokens, sent_bytes, peer))
        if left and left != stage:
            counts, sums_s = self._times.setdefault(left, ([0] * (len(STAGE_BUCKETS_S) + 1), [0.0]))
            took_s = max(0.0, at_s - tale.entered_s)
            counts[bisect_left(STAGE_BUCKETS_S, took_s)] += 1
            sums_s[0] += took_s
        tale.stage, tale.entered_s = stage, at_s
        return tale

    def note(
        self, key: RoomKey, because: str, at_s: float, *, tokens: int = 0, sent_bytes: int = 0
    ) -> None:
        """Add a line without a change of stage; unknown rooms and full stories are let be."""
        tale = self._open.get(key)
        if tale is not None and len(tale.lines) < LINES_LIMIT:
            tale.lines.append(Line(at_s, tale.stage, tale.stage, because, tokens, sent_bytes))

    def leave(self, key: RoomKey, because: str, at_s: float, failure: Failure | None) -> Tale:
        """End a room: its story goes to the ring of the good or of the failed ones."""
        tale = self.enter(key, "", because, at_s)
        del self._open[key]
        tale.open = False
        tale.failure = failure
        ring = self._ended[failure is not None]
        ring[key] = tale
        ring.move_to_end(key)
        while len(ring) > self._limits[failure is not None]:
            ring.popitem(last=False)
        return tale

    def stage(self, key: RoomKey) -> str:
        """Return the stage of an open room, "" when it is not here."""
        tale = self._open.get(key)
        return tale.stage if tale else ""

    def tale(self, key: RoomKey) -> Tale | None:
        """Return an open room's tale."""
        return self._open.get(key)

    def counts(self) -> dict[str, int]:
        """Return how many open rooms are in each stage, every stage of the table named."""
        counts = {stage: 0 for stage in self._steps if stage}
        for tale in self._open.values():
            counts[tale.stage] += 1
        return counts

    def stories(self, room: int) -> list[Story]:
        """Return the stories of every attempt of a room, oldest first."""
        everywhere = (self._ended[False], self._ended[True], self._open)
        tales = [t for ring in everywhere for k, t in ring.items() if k.room == room]
        return [self._story(tale) for tale in sorted(tales, key=lambda tale: tale.key)]

    def rows(self, now_s: float, *, ended: int = 50) -> list[RoomRow]:
        """Return open rooms, then up to ``ended`` of the last failed and the last good ones."""
        failed, good = ([*self._ended[bad].values()] for bad in (True, False))
        last = failed[max(0, len(failed) - ended) :] + good[max(0, len(good) - ended) :]
        return [self._row(tale, now_s) for tale in (*self._open.values(), *reversed(last))]

    def _row(self, tale: Tale, now_s: float) -> RoomRow:
        stage = tale.stage if tale.open else ("failed" if tale.failure else "done")
        return RoomRow(
            tale.key.room,
            tale.key.attempt,
            stage,
            now_s - tale.lines[0].at_s,
            tale.peer,
            tale.prompt_tokens,
            tale.output_tokens,
            tale.failure,
        )

    def _story(self, tale: Tale) -> Story:
        return Story(
            tale.key.room,
            tale.key.attempt,
            self._instance,
            self._role,
            tuple(tale.lines),
            tale.open,
            tale.prompt_tokens,
            tale.cached_tokens,
            tale.output_tokens,
            tale.peer,
            tale.failure,
            dict(tale.facts),
        )

    @staticmethod
    def _told(tale: Tale | None) -> str:
        if tale is None:
            return "it was never here"
        return "; ".join(f"{line.left or '-'}>{line.entered} {line.because}" for line in tale.lines)

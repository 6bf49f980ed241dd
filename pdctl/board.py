"""What ``pdctl top`` shows, from a survey and the one before it; pure.

Counters become rates by the difference between two looks; the first look has no rates, and a
daemon that began anew in between has none either.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.protocol.story import WorkerStatus
from pdctl.health import Health, health_of, kv_share, state_of
from pdctl.survey import Survey

WAITING = ("waiting", "retracted", "prealloc")
TOKENS = "output_tokens"  # counter of a decode


@dataclass(frozen=True, slots=True)
class Line:
    """One daemon."""

    name: str
    role: str
    state: str
    stages: dict[str, int] | None  # None: it does not answer
    kv_share: float | None
    queue: int | None
    ttft_s: tuple[float | None, float | None]  # half of all, 99 %
    itl_s: tuple[float | None, float | None]
    tokens_per_s: float | None
    wire_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Board:
    """The whole at one moment; ``counts`` are what the next look is compared with."""

    at_s: float
    health: Health
    lines: tuple[Line, ...]
    counts: dict[tuple[str, int], float]  # by instance and epoch

    @property
    def rooms(self) -> int:
        """Rooms that a decode or, before that, a prefill has: each is counted where it is last."""
        by_role = {"prefill": 0, "decode": 0}
        for line in self.lines:
            if line.role in by_role:
                by_role[line.role] += sum((line.stages or {}).values())
        return max(by_role.values())

    @property
    def tokens_per_s(self) -> float | None:
        """Of all decodes."""
        rates = [line.tokens_per_s for line in self.lines if line.tokens_per_s is not None]
        return sum(rates) if rates else None


def board_of(survey: Survey, at_s: float, before: Board | None, file_hash: str = "") -> Board:
    """Return what is seen now; ``file_hash`` is that of the file that we look with."""
    counts = {
        (name, said.epoch): said.counters[TOKENS]
        for name, said in survey.statuses.items()
        if TOKENS in said.counters
    }
    lines = [_line(survey, name, at_s, before) for name in survey.places if name != "bootstrap"]
    return Board(at_s, health_of(survey, file_hash), tuple(lines), counts)


def _line(survey: Survey, name: str, at_s: float, before: Board | None) -> Line:
    role, state = survey.places[name].role.value, state_of(survey, name)
    said = survey.statuses.get(name)
    if said is None:
        nothing = (None, None)
        return Line(name, role, state, None, None, None, nothing, nothing, None, None)
    is_worker = role != "lb"
    return Line(
        name,
        role,
        state,
        said.rooms,
        kv_share(said.pages, said.pages_total) if said.pages_total else None,
        sum(said.rooms.get(stage, 0) for stage in WAITING) if is_worker else None,
        (said.ttft_p50_s, said.ttft_p99_s),
        (said.itl_p50_s, said.itl_p99_s),
        _rate(name, said, at_s, before),
        said.wire_bytes_per_s,
    )


def _rate(name: str, said: WorkerStatus, at_s: float, before: Board | None) -> float | None:
    if before is None or at_s <= before.at_s or TOKENS not in said.counters:
        return None
    was = before.counts.get((name, said.epoch))
    return None if was is None else (said.counters[TOKENS] - was) / (at_s - before.at_s)

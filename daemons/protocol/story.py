"""The story of a room: one line per stage change, the same shape in every daemon.

``pdctl trace room`` merges the lines of all daemons by their wall clocks.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from daemons.protocol.causes import Failure


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A room left one stage and entered another (``entered`` "" : it is gone from here)."""

    at_s: float  # wall clock of the daemon that writes
    left: str
    entered: str
    because: str
    tokens: int = 0
    bytes: int = 0
    peer: str = ""


class Story(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that one daemon knows about a room; ``failure`` names the first cause."""

    room: int
    attempt: int
    instance: str
    role: str
    lines: tuple[Line, ...]
    open: bool  # still in some stage
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    peer: str = ""
    failure: Failure | None = None
    facts: dict[str, str] = {}  # e.g. why this pair was picked, the transport in use


class RoomRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``GET /rooms``."""

    room: int
    attempt: int
    stage: str  # or done, failed
    age_s: float  # since the room came here, ended or not
    peer: str
    prompt_tokens: int
    output_tokens: int
    failure: Failure | None = None


STAGE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class StageTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long rooms were in one stage that they have left, since the start."""

    counts: tuple[int, ...] = (0,) * (len(STAGE_BUCKETS_S) + 1)  # by bucket; the last has no end
    sum_s: float = 0.0

    def with_one(self, took_s: float) -> StageTimes:
        """Return the same with one room more."""
        at = bisect_left(STAGE_BUCKETS_S, took_s)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return StageTimes(counts, self.sum_s + took_s)


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a prefill has written to one decode, since its start."""

    transport: str = ""  # what really carries the bytes: shm, cma, tcp, rdma …; (why not cma)
    bytes: int = 0
    copies: int = 0
    unmerged: int = 0  # copies that it would have been, page by page
    failed: int = 0  # writes
    share: float = 0.0  # of the last seconds in which it was being written to
    queued: StageTimes = StageTimes()  # of writes that stood behind others
    writing: StageTimes = StageTimes()


class WorkerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a worker's ``GET /status``; also what metrics are made from."""

    instance: str
    role: str
    epoch: int
    state: str
    version: str
    up_s: float
    model: str
    transport: str
    rooms: dict[str, int]  # by stage
    pages: dict[str, int]  # by owner: free, cached, request, writer, quarantined; sum is the pool
    pages_total: int
    rows: dict[str, int]
    peers: dict[str, str]  # peer -> alive | suspect | dead, with epoch
    counters: dict[str, float]  # monotone since start
    ttft_p50_s: float | None = None
    itl_p50_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p99_s: float | None = None
    wire_bytes_per_s: float | None = None
    config_hash: str = ""
    credits: dict[str, int] = {}  # what another room may count on: tokens, rows, places; queue
    stage_times: dict[str, StageTimes] = {}  # by stage
    wires: dict[str, Wire] = {}  # by the instance that is written to
    chaos: tuple[str, ...] = ()  # faults that are armed on purpose, in words
    drain_left_s: float | None = None  # until one that stops ends its rooms; None: no deadline
    window_pages: dict[str, int] = {}  # by owner, of layers with a window; {}: they have no own
    loop_lag_max_s: float = 0.0  # since start, the longest that the core's loop was busy at once

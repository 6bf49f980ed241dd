"""Did a room wait longer than rooms usually do there? By the workers' own histograms of stages.

Usual is the upper bound of the bucket in which nine of ten rooms of that instance have left the
stage. With fewer than ``LEAST_ROOMS`` nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from daemons.protocol.story import STAGE_BUCKETS_S, StageTimes, WorkerStatus
from pdctl.merge import Waterfall
from pdctl.render import milliseconds

LEAST_ROOMS = 20
MOST = 0.9  # of the rooms
WAITS = ("p.bootstrap", "p.waiting", "p.inflight", "d.prealloc", "d.prebuilt")


def verdict(seen: Waterfall, statuses: Mapping[str, WorkerStatus]) -> str:
    """Return one line about a room's waits, "" where nobody knows what is usual."""
    compared = list(_compared(seen, statuses))
    late = [
        f"{name} {milliseconds(took_s)} (usually under {milliseconds(usual_s)})"
        for name, took_s, usual_s in compared
        if took_s > usual_s
    ]
    if late:
        return f"waited longer than usual: {', '.join(late)}"
    return "nothing waited longer than usual" if compared else ""


def usual_s(times: StageTimes) -> float | None:
    """Return a time that most rooms stay under, None where too few are counted."""
    rooms = sum(times.counts)
    if rooms < LEAST_ROOMS:
        return None
    for bound_s, below in zip(STAGE_BUCKETS_S, accumulate(times.counts), strict=False):
        if below >= MOST * rooms:
            return bound_s
    return float("inf")


def _compared(
    seen: Waterfall, statuses: Mapping[str, WorkerStatus]
) -> Iterator[tuple[str, float, float]]:
    for span in seen.spans:
        status = statuses.get(span.instance)
        if span.name not in WAITS or span.is_open or status is None:
            continue
        times = status.stage_times.get(span.name.partition(".")[2])
        if times is not None and (usual := usual_s(times)) is not None:
            yield span.name, span.length_s, usual

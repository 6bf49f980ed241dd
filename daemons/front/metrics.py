"""What a front measures itself, and what it passes on from its ranks' last snapshot.

Names begin with ``pd_``, times are seconds. The registry is the front's own.
"""

from __future__ import annotations

from collections import Counter as TallyOf
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from daemons.protocol.story import STAGE_BUCKETS_S, Wire, WorkerStatus

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
ITL_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5)
E2E_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
WINDOW = 1000  # latest samples, for the percentiles of /status


class Meter:
    """Counts and times of the requests that this front serves."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.late_outputs = Counter(
            "pd_late_outputs", "Outputs for rooms nobody waits for", registry=self.registry
        )
        self._requests = Counter(
            "pd_requests", "Requests by outcome", ["outcome"], registry=self.registry
        )
        self._tokens = Counter("pd_output_tokens", "Tokens handed out", registry=self.registry)
        self._ttft = self._histogram("pd_ttft_seconds", "Time to first token", TTFT_BUCKETS_S)
        self._itl = self._histogram("pd_itl_seconds", "Time between tokens", ITL_BUCKETS_S)
        self._e2e = self._histogram("pd_e2e_seconds", "Time of whole requests", E2E_BUCKETS_S)
        self._last_ttft: deque[float] = deque(maxlen=WINDOW)
        self._last_itl: deque[float] = deque(maxlen=WINDOW)
        self.status: WorkerStatus | None = None  # the ranks' last
        self.registry.register(self)

    def first_token(self, elapsed_s: float) -> None:
        """A room's first token came ``elapsed_s`` after its request."""
        self._tokens.inc()
        self._ttft.observe(elapsed_s)
        self._last_ttft.append(elapsed_s)

    def next_tokens(self, elapsed_s: float, tokens: int) -> None:
        """``tokens`` more came together, ``elapsed_s`` after the one before."""
        self._tokens.inc(tokens)
        each_s = elapsed_s / tokens
        for _ in range(tokens):
            self._itl.observe(each_s)
        self._last_itl.append(each_s)

    def ended(self, outcome: str, elapsed_s: float) -> None:
        """A request ended: ``outcome`` is ``ok`` or the cause."""
        self._requests.labels(outcome).inc()
        self._e2e.observe(elapsed_s)

    @property
    def ttft_p50_s(self) -> float | None:
        """Of the latest requests; None before the first."""
        return percentile(self._last_ttft, 0.5)

    @property
    def itl_p50_s(self) -> float | None:
        """Of the latest tokens; None before the first."""
        return percentile(self._last_itl, 0.5)

    @property
    def ttft_p99_s(self) -> float | None:
        """Of the latest requests; None before the first."""
        return percentile(self._last_ttft, 0.99)

    @property
    def itl_p99_s(self) -> float | None:
        """Of the latest tokens; None before the first."""
        return percentile(self._last_itl, 0.99)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics made from the last snapshot; called by the registry."""
        if self.status is not None:
            yield from families(self.status)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)


def percentile(samples: Iterable[float], part: float) -> float | None:
    """Return the sample that ``part`` of all do not exceed; None of none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def families(status: WorkerStatus) -> Iterator[Metric]:
    """Return a worker's status as metrics."""
    info = InfoMetricFamily("pd_instance", "What this instance is")
    facts = {name: getattr(status, name) for name in ("instance", "role", "state", "version")}
    info.add_metric([], facts | {"model": status.model, "transport": carrier(status.transport)})
    yield info
    yield _by("pd_rooms", "Rooms by stage", "stage", status.rooms)
    yield _by("pd_pages", "Pages by owner", "owner", status.pages)
    if status.window_pages:
        yield _by("pd_window_pages", "Window pages by owner", "owner", status.window_pages)
    yield _by("pd_rows", "Metadata rows by owner", "owner", status.rows)
    peers = TallyOf(word.split(" ")[0] for word in status.peers.values())
    yield _by("pd_peers", "Peers by state", "state", peers)
    yield _by("pd_credits", "What another room may count on, and who waits", "of", status.credits)
    yield GaugeMetricFamily("pd_pool_pages", "Pages of the pool", value=status.pages_total)
    yield GaugeMetricFamily("pd_up_seconds", "Time since start", value=status.up_s)
    lag = "Longest that the core's loop was busy at once, since start"
    yield GaugeMetricFamily("pd_loop_lag_max_seconds", lag, value=status.loop_lag_max_s)
    yield _stage_times(status)
    yield from _wires(status.wires)
    yield from _counters(status.counters)


def carrier(transport: str) -> str:
    """Return what carries bytes, as a label: without why nothing shorter does, in brackets."""
    return transport.partition(" (")[0]


def _stage_times(status: WorkerStatus) -> Metric:
    family = HistogramMetricFamily(
        "pd_stage_seconds", "Time of rooms in a stage, its queue included", labels=["role", "stage"]
    )
    limits = [*(str(limit) for limit in STAGE_BUCKETS_S), "+Inf"]
    for stage, times in status.stage_times.items():
        buckets = list(zip(limits, accumulate(times.counts), strict=True))
        family.add_metric([status.role, stage], buckets, times.sum_s)
    return family


def _wires(wires: dict[str, Wire]) -> Iterator[Metric]:
    """Return what was written to each decode; times are of all of them together."""
    counts = {
        "bytes": "Bytes written to a decode",
        "copies": "Copies by which they went",
        "unmerged": "Copies that it would have been page by page",
        "failed": "Writes that failed",
    }
    for name, text in counts.items():
        counter = CounterMetricFamily(f"pd_wire_{name}", text, labels=["peer", "transport"])
        for peer, wire in wires.items():
            counter.add_metric([peer, carrier(wire.transport)], getattr(wire, name))
        yield counter
    yield _by_share(wires)
    limits = [*(str(limit) for limit in STAGE_BUCKETS_S), "+Inf"]
    family = HistogramMetricFamily(
        "pd_write_seconds", "Time of writes in the queue and on the wire", labels=["of", "peer"]
    )
    for peer, wire in wires.items():
        for of, times in (("queue", wire.queued), ("wire", wire.writing)):
            buckets = list(zip(limits, accumulate(times.counts), strict=True))
            family.add_metric([of, peer], buckets, times.sum_s)
    yield family


def _by_share(wires: dict[str, Wire]) -> Metric:
    family = GaugeMetricFamily(
        "pd_wire_share",
        "Part of the last seconds in which a decode was written to",
        labels=["peer"],
    )
    for peer, wire in wires.items():
        family.add_metric([peer], wire.share)
    return family


def _counters(values: dict[str, float]) -> Iterator[Metric]:
    """Return the rank's counters; what follows a colon in a name is the label ``what``."""
    found: dict[str, CounterMetricFamily] = {}
    for name, value in values.items():
        word, _, what = name.partition(":")
        safe = "".join(c if c.isalnum() else "_" for c in word).removesuffix("_total")
        family = found.setdefault(
            safe, CounterMetricFamily(f"pd_rank_{safe}", "Counted by the rank", labels=["what"])
        )
        family.add_metric([what], value)
    yield from found.values()


def _by(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family

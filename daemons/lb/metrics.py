"""What Prometheus sees of the balancer."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from daemons.lb.breaker import Breakers, Circuit
from daemons.lb.fleet import Fleet
from daemons.protocol.causes import Failure
from daemons.protocol.topology import Role, State

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(slots=True)
class Times:
    """A histogram as plain numbers: what each request pays for is one addition."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def take(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds with how many are within, as Prometheus has them."""
        within, told = 0, []
        for bound, count in zip((*BUCKETS_S, float("inf")), self.counts, strict=True):
            within += count
            told.append(("+Inf" if bound == float("inf") else str(float(bound)), float(within)))
        return told


@dataclass(eq=False, slots=True)
class Tally:
    """What is counted for each request; made into Prometheus' objects when somebody looks."""

    requests: Counts[tuple[str, int]] = field(default_factory=Counts)  # by path and status
    first: Times = field(default_factory=Times)
    whole: Times = field(default_factory=Times)
    first_tokens: dict[str, Times] = field(default_factory=dict)  # by leg

    def collect(self) -> Iterable[Metric]:
        """Return all of it, for a registry."""
        requests = CounterMetricFamily(
            "pd_lb_requests", "Requests by path and status", labels=["path", "status"]
        )
        for (path, status), count in self.requests.items():
            requests.add_metric([path, str(status)], count)
        legs = HistogramMetricFamily(
            "pd_lb_first_token_seconds", "Until a leg's first event, of the last try",
            labels=["leg"],
        )  # fmt: skip
        for leg, times in self.first_tokens.items():
            legs.add_metric([leg], times.buckets(), times.sum_s)
        return (
            requests,
            _family("pd_lb_first_seconds", "Until the answer began", self.first),
            _family("pd_lb_request_seconds", "Until the answer ended", self.whole),
            legs,
        )


def _family(name: str, about: str, times: Times) -> Metric:
    return HistogramMetricFamily(name, about, buckets=times.buckets(), sum_value=times.sum_s)


class Metrics:
    """Counters that grow as requests end, and gauges that are set when somebody looks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tally = Tally()
        self.registry.register(self.tally)
        self._failures = Counter(
            "pd_lb_failures", "Requests that failed, by first cause", ["cause"],
            registry=self.registry,
        )  # fmt: skip
        self._retries = Counter(
            "pd_lb_retries", "Tries that were made again, by cause", ["cause"],
            registry=self.registry,
        )  # fmt: skip
        self._lone = Counter(
            "pd_lb_local_prefills", "Tries that decode served without a prefill",
            registry=self.registry,
        )  # fmt: skip
        self._circuits = Gauge(
            "pd_lb_breaker_open", "1 while a worker rests after failures, or is tried again",
            ["worker"], registry=self.registry,
        )  # fmt: skip
        self._rooms = Gauge("pd_lb_rooms", "Open rooms", ["stage"], registry=self.registry)
        self._loads = Gauge(
            "pd_lb_worker_rooms", "Rooms in flight", ["worker"], registry=self.registry
        )
        self._workers = Gauge(
            "pd_lb_workers", "Workers of the last view", ["role", "state"], registry=self.registry
        )
        self._pairs = Gauge("pd_lb_pairs", "Pairs that may serve", registry=self.registry)
        self.served = 0
        self.failed = 0
        self.retries = 0
        self.lone = 0

    def ended(
        self,
        path: str,
        status: int,
        failure: Failure | None,
        *,
        first_s: float | None,
        whole_s: float,
    ) -> None:
        """Count a request that has ended."""
        self.served += 1
        tally = self.tally
        tally.requests[path, status] += 1
        tally.whole.take(whole_s)
        if first_s is not None:
            tally.first.take(first_s)
        if failure is not None:
            self.failed += 1
            self._failures.labels(failure.cause.value).inc()

    def first_token(self, leg: str, seconds: float) -> None:
        """Take the time until the first event of a leg."""
        times = self.tally.first_tokens
        if leg not in times:
            times[leg] = Times()
        times[leg].take(seconds)

    def retried(self, failure: Failure) -> None:
        """Count a try that is made again."""
        self.retries += 1
        self._retries.labels(failure.cause.value).inc()

    def alone(self) -> None:
        """Count a try that decode serves without a prefill."""
        self.lone += 1
        self._lone.inc()

    def turned_away(self, failure: Failure) -> None:
        """Count a request that never got a pair."""
        self._failures.labels(failure.cause.value).inc()

    def show(
        self, fleet: Fleet, breakers: Breakers, stages: Mapping[str, int], now_s: float
    ) -> None:
        """Set the gauges."""
        for stage, rooms in stages.items():
            self._rooms.labels(stage).set(rooms)
        self._loads.clear()
        self._circuits.clear()
        counts = {(role, state): 0 for role in (Role.PREFILL, Role.DECODE) for state in State}
        for worker in fleet.workers.values():
            counts[worker.role, worker.state] += 1
            self._loads.labels(worker.name).set(fleet.rooms.get(worker.life, 0))
            is_open = breakers.circuit(worker.life, now_s) is not Circuit.CLOSED
            self._circuits.labels(worker.name).set(is_open)
        for (role, state), count in counts.items():
            self._workers.labels(role.value, state.value).set(count)
        self._pairs.set(len(fleet.pairs(now_s)))

"""What Prometheus sees of the balancer."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from daemons.lb.breaker import Breakers, Circuit
from daemons.lb.fleet import Fleet
from daemons.protocol.causes import Failure
from daemons.protocol.topology import Role, State

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counters that grow as requests end, and gauges that are set when somebody looks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pd_lb_requests", "Requests by path and status", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._failures = Counter(
            "pd_lb_failures", "Requests that failed, by first cause", ["cause"],
            registry=self.registry,
        )  # fmt: skip
        self._first = Histogram(
            "pd_lb_first_seconds", "Until the answer began", buckets=BUCKETS_S,
            registry=self.registry,
        )  # fmt: skip
        self._whole = Histogram(
            "pd_lb_request_seconds", "Until the answer ended", buckets=BUCKETS_S,
            registry=self.registry,
        )  # fmt: skip
        self._first_tokens = Histogram(
            "pd_lb_first_token_seconds", "Until a leg's first event, of the last try", ["leg"],
            buckets=BUCKETS_S, registry=self.registry,
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
        self._requests.labels(path, status).inc()
        self._whole.observe(whole_s)
        if first_s is not None:
            self._first.observe(first_s)
        if failure is not None:
            self.failed += 1
            self._failures.labels(failure.cause.value).inc()

    def first_token(self, leg: str, seconds: float) -> None:
        """Take the time until the first event of a leg."""
        self._first_tokens.labels(leg).observe(seconds)

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

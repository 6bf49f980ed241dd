from prometheus_client.exposition import generate_latest

from daemons.lb.breaker import Breakers
from daemons.lb.fleet import Fleet, Worker
from daemons.lb.metrics import Metrics
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role, State


def test_ended_requests_are_counted_by_status_and_cause() -> None:
    metrics = Metrics()
    metrics.ended("/generate", 200, None, first_s=0.1, whole_s=2.0)
    failure = Failure(Cause.PEER_DIED, "transfer", "p0")
    metrics.ended("/generate", 502, failure, first_s=None, whole_s=1.0)
    text = generate_latest(metrics.registry).decode()
    assert 'pd_lb_requests_total{path="/generate",status="200"} 1.0' in text
    assert 'pd_lb_failures_total{cause="peer.died"} 1.0' in text
    assert "pd_lb_first_seconds_count 1.0" in text
    assert "pd_lb_request_seconds_count 2.0" in text


def test_the_gauges_show_the_last_view_and_forget_workers_that_left() -> None:
    metrics, fleet = Metrics(), Fleet(300.0)
    fleet.workers = {"p0": Worker("p0", Role.PREFILL, 1, State.READY, "h", 1)}
    fleet.rooms["p0", 1] = 3
    breakers = Breakers(1, 5.0)
    breakers.bad(("p0", 1), 0.0)
    metrics.show(fleet, breakers, {"dispatch": 2, "stream": 1}, 0.0)
    text = generate_latest(metrics.registry).decode()
    assert 'pd_lb_rooms{stage="dispatch"} 2.0' in text
    assert 'pd_lb_worker_rooms{worker="p0"} 3.0' in text
    assert 'pd_lb_workers{role="prefill",state="ready"} 1.0' in text
    assert 'pd_lb_breaker_open{worker="p0"} 1.0' in text
    fleet.workers = {}
    metrics.show(fleet, breakers, {}, 0.0)
    text = generate_latest(metrics.registry).decode()
    assert "pd_lb_worker_rooms{" not in text
    assert 'pd_lb_workers{role="prefill",state="ready"} 0.0' in text


def test_first_tokens_are_measured_for_each_leg_and_tries_are_counted() -> None:
    metrics = Metrics()
    metrics.first_token("prefill", 0.02)
    metrics.first_token("decode", 0.2)
    metrics.retried(Failure(Cause.PEER_DIED, "transfer", "p0"))
    metrics.alone()
    text = generate_latest(metrics.registry).decode()
    assert 'pd_lb_first_token_seconds_sum{leg="prefill"} 0.02' in text
    assert 'pd_lb_first_token_seconds_sum{leg="decode"} 0.2' in text
    assert 'pd_lb_retries_total{cause="peer.died"} 1.0' in text
    assert "pd_lb_local_prefills_total 1.0" in text

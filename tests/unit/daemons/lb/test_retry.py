from __future__ import annotations

import pytest

from daemons.lb.fleet import Pair, Worker
from daemons.lb.leg import Answer, LegFailed
from daemons.lb.retry import Budget, guilty, may_succeed_elsewhere
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role, State

P0 = Worker("p0", Role.PREFILL, 1, State.READY, "h", 1)
D0 = Worker("d0", Role.DECODE, 1, State.READY, "h", 2)
PAIR = Pair(P0, D0)


def failed(cause: Cause, status: int | None = None, peer: str = "") -> LegFailed:
    said = None if status is None else Answer(status, b"", {})
    return LegFailed(Failure(cause, "dispatch", peer), said)


def test_a_reserve_is_there_from_the_beginning_and_not_for_ever() -> None:
    budget = Budget(share=0.5, reserve=2, refill_s=1000)
    assert [budget.spend(0.0) for _ in range(3)] == [True, True, False]


def test_requests_pay_for_a_share_of_retries() -> None:
    budget = Budget(share=0.25, reserve=1, refill_s=1e9)
    assert budget.spend(0.0)
    retried = 0
    for _ in range(40):
        budget.request(0.0)
        retried += budget.spend(0.0)
    assert retried == 10


def test_the_budget_never_grows_beyond_its_reserve() -> None:
    budget = Budget(share=1, reserve=3)
    for second in range(100):
        budget.request(float(second))
    assert [budget.spend(99.0) for _ in range(4)] == [True, True, True, False]


def test_time_brings_a_retry_back_for_balancers_with_few_requests() -> None:
    budget = Budget(share=0, reserve=1, refill_s=10)
    assert budget.spend(0.0)
    assert not budget.spend(9.0)
    assert budget.spend(10.5)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (failed(Cause.LB_WORKER_GONE), True),
        (failed(Cause.INSTANCE_DRAINING, 503), True),
        (failed(Cause.PEER_DIED, 502), True),
        (failed(Cause.TRANSFER_FAILED, 502), True),
        (failed(Cause.INTERNAL, 503), True),  # of a worker that names no cause of ours
        (failed(Cause.INTERNAL, 500), False),  # it would meet the same defect
        (failed(Cause.ENGINE_FAILED, 500), False),
        (failed(Cause.REQUEST_INVALID, 400), False),
        (failed(Cause.QUEUE_FULL, 429), False),
        (failed(Cause.LB_TIMEOUT), False),
        (failed(Cause.TOTAL_TIMEOUT, 504), False),
        (failed(Cause.CLIENT_CANCELLED, 499), False),
        (failed(Cause.LB_KEY_MISMATCH), False),
    ],
    ids=lambda one: str(one),
)
def test_what_may_succeed_elsewhere_is_tried_again(error: LegFailed, *, again: bool) -> None:
    assert may_succeed_elsewhere(error) is again


def test_the_worker_that_a_failure_names_is_to_blame_whoever_told() -> None:
    assert guilty(failed(Cause.PEER_DIED, 502, peer="p0"), D0, PAIR) is P0
    assert guilty(failed(Cause.LB_WORKER_GONE, peer="d0"), D0, PAIR) is D0


def test_a_failure_without_a_name_is_its_legs() -> None:
    assert guilty(failed(Cause.INTERNAL, 500), P0, PAIR) is P0
    assert guilty(failed(Cause.ENGINE_FAILED, 500, peer="p9"), D0, PAIR) is D0


@pytest.mark.parametrize(
    "error",
    [
        failed(Cause.REQUEST_INVALID, 400, "d0"),
        failed(Cause.INTERNAL, 429, "d0"),
        failed(Cause.QUEUE_FULL, 503, "d0"),
        failed(Cause.INSTANCE_DRAINING, 503, "d0"),
        failed(Cause.TRANSFER_FAILED, 502, "d0"),
        failed(Cause.PEER_NEVER_CAME, 504, "d0"),
    ],
    ids=str,
)
def test_overload_leaving_clients_and_what_lies_between_two_are_nobodys_guilt(
    error: LegFailed,
) -> None:
    assert guilty(error, D0, PAIR) is None


def test_a_request_whose_time_is_over_is_nobodys_guilt() -> None:
    assert guilty(failed(Cause.LB_TIMEOUT, peer="d0"), None, PAIR) is None

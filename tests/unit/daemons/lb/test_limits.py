from __future__ import annotations

from daemons.lb.limits import SWEEP, Limits


def test_without_limits_nobody_is_counted() -> None:
    limits = Limits(0, 0, 1)
    assert [limits.enter("a", 100, 0.0) for _ in range(50)] == [None] * 50
    assert limits.accounts == {}


def test_a_client_has_so_many_rooms_at_once_and_others_do_not_suffer() -> None:
    limits = Limits(rooms=2, rate=0, burst=1)
    assert limits.enter("a", 1, 0.0) is None
    assert limits.enter("a", 1, 0.0) is None
    assert limits.enter("a", 1, 0.0) == 1.0
    assert limits.enter("b", 1, 0.0) is None
    limits.leave("a", 1)
    assert limits.enter("a", 1, 0.0) is None


def test_a_batch_above_the_limit_is_let_in_when_nothing_else_is_open() -> None:
    limits = Limits(rooms=2, rate=0, burst=1)
    assert limits.enter("a", 5, 0.0) is None
    assert limits.enter("a", 1, 0.0) is not None


def test_a_rate_lets_a_burst_through_and_tells_when_the_next_may_come() -> None:
    limits = Limits(rooms=0, rate=2.0, burst=3)
    assert [limits.enter("a", 1, 0.0) for _ in range(4)] == [None, None, None, 0.5]
    assert limits.enter("a", 1, 0.5) is None
    assert limits.enter("a", 1, 0.75) == 0.25
    assert [limits.enter("a", 1, 100.0) for _ in range(4)] == [None, None, None, 0.5]


def test_clients_at_rest_are_forgotten() -> None:
    limits = Limits(rooms=1, rate=1.0, burst=1)
    for n in range(10 * SWEEP):
        limits.enter(str(n), 1, float(n))
        limits.leave(str(n), 1)
    assert len(limits.accounts) <= SWEEP


def test_clients_that_are_busy_are_not_forgotten() -> None:
    limits = Limits(rooms=1, rate=0, burst=1)
    for n in range(2 * SWEEP):
        limits.enter(str(n), 1, 0.0)
    assert all(limits.enter(str(n), 1, 0.0) is not None for n in range(2 * SWEEP))

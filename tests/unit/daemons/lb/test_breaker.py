from __future__ import annotations

from daemons.lb.breaker import Breakers, Circuit

D0, D1 = ("d0", 1), ("d1", 1)


def opened(now_s: float = 0.0) -> Breakers:
    breakers = Breakers(in_a_row=3, rest_s=5.0)
    assert [breakers.bad(D0, now_s) for _ in range(3)] == [False, False, True]
    return breakers


def test_a_worker_that_never_failed_has_no_account() -> None:
    breakers = Breakers(3, 5.0)
    breakers.took(D0, 0.0)
    breakers.good(D0)
    breakers.neither(D0)
    assert breakers.accounts == {}
    assert breakers.circuit(D0, 0.0) is Circuit.CLOSED


def test_failures_in_a_row_open_the_breaker_of_that_worker_only() -> None:
    breakers = opened()
    assert breakers.circuit(D0, 1.0) is Circuit.OPEN
    assert not breakers.lets(D0, 1.0)
    assert breakers.lets(D1, 1.0)
    assert breakers.lets(("d0", 2), 1.0), "another life has no past"


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breakers = Breakers(3, 5.0)
    for _ in range(4):
        breakers.bad(D0, 0.0)
        breakers.bad(D0, 0.0)
        breakers.good(D0)
        breakers.good(D0)
        breakers.good(D0)
    assert breakers.lets(D0, 0.0)


def test_one_that_fails_half_of_the_time_is_an_outlier() -> None:
    breakers = Breakers(in_a_row=100, rest_s=5.0)
    told = []
    for _ in range(5):
        told.append(breakers.bad(D0, 0.0))
        breakers.good(D0)
    told.append(breakers.bad(D0, 0.0))
    assert told == [False] * 5 + [True]


def test_after_its_rest_one_request_tries_and_its_success_closes() -> None:
    breakers = opened()
    assert breakers.circuit(D0, 5.0) is Circuit.HALF_OPEN
    assert breakers.lets(D0, 5.0)
    breakers.took(D0, 5.0)
    assert not breakers.lets(D0, 5.0), "one at a time"
    breakers.good(D0)
    assert breakers.circuit(D0, 5.0) is Circuit.CLOSED
    assert breakers.accounts == {}


def test_a_failed_try_opens_again_for_twice_as_long() -> None:
    breakers = opened()
    breakers.took(D0, 5.0)
    assert breakers.bad(D0, 5.0)
    assert not breakers.lets(D0, 14.9)
    assert breakers.lets(D0, 15.0)


def test_the_rest_has_a_longest() -> None:
    breakers, now_s = opened(), 0.0
    for _ in range(20):
        now_s += 1000.0
        breakers.bad(D0, now_s)
    assert breakers.lets(D0, now_s + 40.0)


def test_a_try_that_says_nothing_makes_way_for_another() -> None:
    breakers = opened()
    breakers.took(D0, 5.0)
    breakers.neither(D0)
    assert breakers.lets(D0, 5.0)


def test_late_failures_of_requests_from_before_do_not_lengthen_the_rest() -> None:
    breakers = opened()
    assert not breakers.bad(D0, 1.0)
    assert breakers.lets(D0, 5.0)


def test_lives_that_are_gone_are_forgotten() -> None:
    breakers = opened()
    breakers.keep({D1})
    assert breakers.accounts == {}

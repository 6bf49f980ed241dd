from daemons.lb.fleet import Wish
from daemons.lb.policies.consistent_hash import ConsistentHash

from .conftest import Make

SESSIONS = [f"session {n}" for n in range(300)]


def test_a_session_stays_with_its_worker(one: Make) -> None:
    policy = ConsistentHash()
    three = [one("a"), one("b"), one("c")]
    for session in SESSIONS[:20]:
        wish = Wish(session=session)
        assert len({policy.pick(three, wish).worker.name for _ in range(5)}) == 1


def test_sessions_spread_and_a_leaving_worker_moves_only_its_own(one: Make) -> None:
    policy = ConsistentHash()
    three = [one("a"), one("b"), one("c")]
    before = {s: policy.pick(three, Wish(session=s)).worker.name for s in SESSIONS}
    after = {s: policy.pick(three[:2], Wish(session=s)).worker.name for s in SESSIONS}
    for name in "abc":
        assert 60 < list(before.values()).count(name) < 140
    assert all(after[s] == name for s, name in before.items() if name != "c")


def test_a_worker_that_is_far_too_busy_passes_its_sessions_on(one: Make) -> None:
    policy = ConsistentHash()
    wish = Wish(session="s")
    at = policy.pick([one("a"), one("b")], wish).worker.name
    busy = [one(name, rooms=100 if name == at else 0) for name in "ab"]
    choice = policy.pick(busy, wish)
    assert choice.worker.name != at
    assert choice.because == "of its session, 1 are too busy"


def test_a_request_without_a_session_goes_where_the_fewest_rooms_are(one: Make) -> None:
    choice = ConsistentHash().pick([one("a", rooms=2), one("b", rooms=1)], Wish())
    assert (choice.worker.name, choice.because) == ("b", "no session, least rooms: 1")

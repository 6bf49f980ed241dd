from daemons.lb.fleet import Pair, Worker
from daemons.lb.policies.round_robin import RoundRobin
from daemons.protocol.topology import Role, State


def pair(prefill: str, decode: str) -> Pair:
    return Pair(
        Worker(prefill, Role.PREFILL, 1, State.READY, "h", 1),
        Worker(decode, Role.DECODE, 1, State.READY, "h", 1),
    )


FOUR = [pair("p0", "d0"), pair("p0", "d1"), pair("p1", "d0"), pair("p1", "d1")]


def test_prefills_and_decodes_take_turns() -> None:
    policy = RoundRobin()
    picks = [policy.pick(FOUR, {}).pair for _ in range(4)]
    assert [p.prefill.name for p in picks] == ["p0", "p1", "p0", "p1"]
    assert [p.decode.name for p in picks] == ["d0", "d1", "d0", "d1"]


def test_a_newcomer_is_next() -> None:
    policy = RoundRobin()
    policy.pick([pair("p1", "d0")], {})
    assert policy.pick([pair("p0", "d0"), pair("p1", "d0")], {}).pair.prefill.name == "p0"


def test_names_that_are_long_gone_are_forgotten() -> None:
    policy = RoundRobin()
    for n in range(1000):
        policy.pick([pair(f"p{n}", f"d{n}")], {})
    assert len(policy._last) <= 8

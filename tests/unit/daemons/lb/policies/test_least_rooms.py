from daemons.lb.fleet import Pair, Worker
from daemons.lb.policies.least_rooms import LeastRooms
from daemons.protocol.topology import Role, State


def pair(prefill: str, decode: str) -> Pair:
    return Pair(
        Worker(prefill, Role.PREFILL, 1, State.READY, "h", 1),
        Worker(decode, Role.DECODE, 1, State.READY, "h", 1),
    )


FOUR = [pair("p0", "d0"), pair("p0", "d1"), pair("p1", "d0"), pair("p1", "d1")]


def test_the_pair_with_the_fewest_rooms_on_both_sides_is_picked_and_told() -> None:
    rooms = {("p0", 1): 3, ("d0", 1): 2, ("p1", 1): 1, ("d1", 1): 5}
    pick = LeastRooms().pick(FOUR, rooms)
    assert pick.pair == FOUR[2]
    assert pick.because == "least rooms: p1 1, d0 2"


def test_equal_pairs_take_turns() -> None:
    policy = LeastRooms()
    picks = [policy.pick(FOUR, {}).pair for _ in range(2)]
    assert [p.prefill.name for p in picks] == ["p0", "p1"]

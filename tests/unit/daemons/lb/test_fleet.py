from __future__ import annotations

import msgspec

from daemons.lb.fleet import Fleet, Pair
from daemons.protocol.topology import Fingerprint, InstanceInfo, Role, State

FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)


def info(name: str, **changes: object) -> InstanceInfo:
    roles = {"p": Role.PREFILL, "d": Role.DECODE, "b": Role.BOOTSTRAP, "l": Role.LB}
    base = InstanceInfo(
        instance=name,
        role=roles[name[0]],
        epoch=100,
        state=State.READY,
        http_host="127.0.0.1",
        http_port=80,
        version="1",
        ranks=1,
        ranks_expected=1,
        lease_left_s=10.0,
        fingerprint=FINGERPRINT,
    )
    return msgspec.structs.replace(base, **changes)


def seen(*infos: InstanceInfo, now_s: float = 0.0) -> Fleet:
    fleet = Fleet(stale_s=300.0)
    fleet.see(infos, now_s)
    return fleet


def names(fleet: Fleet, now_s: float = 0.0) -> list[str]:
    return [f"{pair.prefill.name}-{pair.decode.name}" for pair in fleet.pairs(now_s)]


def only_pair(fleet: Fleet) -> Pair:
    (pair,) = fleet.pairs(0.0)
    return pair


def test_every_ready_prefill_may_serve_with_every_ready_decode() -> None:
    fleet = seen(info("d1"), info("p1"), info("d0"), info("p0"), info("lb"), info("bootstrap"))
    assert names(fleet) == ["p0-d0", "p0-d1", "p1-d0", "p1-d1"]


def test_only_ready_workers_are_in_pairs() -> None:
    states = (State.STARTING, State.DRAINING, State.LOST)
    others = [info(f"p{n}", state=state) for n, state in enumerate(states, 1)]
    assert names(seen(info("p0"), info("d0"), *others)) == ["p0-d0"]


def test_unlike_fingerprints_make_no_pair_and_the_reason_shows_both_values() -> None:
    other = msgspec.structs.replace(FINGERPRINT, page_size=32)
    fleet = seen(info("p0"), info("d0", fingerprint=other))
    assert names(fleet) == []
    assert fleet.why_no_pair(0.0) == "p0 and d0 do not match: page_size: p0 16, d0 32"
    fleet.see([info("p0"), info("d0", fingerprint=other), info("d1")], 1.0)
    assert names(fleet) == ["p0-d1"]


def test_workers_listed_by_hand_have_no_fingerprint_and_pair_freely() -> None:
    assert names(seen(info("p0", fingerprint=None), info("d0"))) == ["p0-d0"]


def test_the_reason_names_the_role_that_is_missing_or_not_ready() -> None:
    assert Fleet(300.0).why_no_pair(0.0) == "the phone book has not answered yet"
    assert seen().why_no_pair(0.0) == "no prefill is registered"
    assert seen(info("p0")).why_no_pair(0.0) == "no decode is registered"
    fleet = seen(info("p0", state=State.STARTING), info("p1", state=State.LOST), info("d0"))
    assert fleet.why_no_pair(0.0) == "no prefill is ready: p0 is starting, p1 is lost"


def test_rooms_are_counted_per_worker_and_return_to_nothing() -> None:
    fleet = seen(info("p0"), info("d0"))
    pair = only_pair(fleet)
    fleet.take(pair, 3)
    fleet.take(pair, 1)
    assert fleet.rooms == {("p0", 100): 4, ("d0", 100): 4}
    fleet.give_back(pair.prefill, 3)
    fleet.give_back(pair.prefill, 1)
    fleet.give_back(pair.decode, 4)
    assert dict(fleet.rooms) == {}


def test_a_replacement_begins_without_the_rooms_of_the_life_before() -> None:
    fleet = seen(info("p0"), info("d0"))
    old = only_pair(fleet)
    fleet.take(old, 3)
    fleet.see([info("p0"), info("d0", epoch=101)], 1.0)
    new = only_pair(fleet)
    assert fleet.rooms[new.decode.life] == 0
    fleet.take(new, 1)
    fleet.give_back(old.decode, 3)
    assert fleet.rooms[new.decode.life] == 1


def test_a_struck_worker_is_out_until_its_lease_was_renewed() -> None:
    fleet = seen(info("p0"), info("d0", lease_left_s=8.0))
    fleet.strike(only_pair(fleet).decode)
    assert names(fleet) == []
    assert fleet.why_no_pair(0.0) == "no decode is ready: d0 refuses requests"
    fleet.see([info("p0"), info("d0", lease_left_s=7.0)], 1.0)  # the same lease, a second later
    assert names(fleet) == []
    fleet.see([info("p0"), info("d0", lease_left_s=9.9)], 2.0)
    assert names(fleet) == ["p0-d0"]


def test_a_struck_worker_that_was_replaced_is_back() -> None:
    fleet = seen(info("p0"), info("d0"))
    fleet.strike(only_pair(fleet).decode)
    fleet.see([info("p0"), info("d0", epoch=101, lease_left_s=1.0)], 1.0)
    assert names(fleet) == ["p0-d0"]


def test_a_strike_against_an_earlier_life_is_no_strike() -> None:
    fleet = seen(info("p0"), info("d0"))
    old = only_pair(fleet).decode
    fleet.see([info("p0"), info("d0", epoch=101)], 1.0)
    fleet.strike(old)
    assert names(fleet) == ["p0-d0"]


def test_the_last_view_holds_while_the_phone_book_is_silent_but_not_for_ever() -> None:
    fleet = seen(info("p0"), info("d0"))
    assert names(fleet, 300.0) == ["p0-d0"]
    assert names(fleet, 301.0) == []
    assert fleet.why_no_pair(301.0) == "the phone book has been silent for 301 s"


def test_a_worker_that_left_is_out_at_once() -> None:
    fleet = seen(info("bootstrap"), info("p0"), info("d0"))
    fleet.see([info("bootstrap"), info("p0")], 1.0)
    assert fleet.why_no_pair(1.0) == "no decode is registered"


def test_a_restarted_phone_book_costs_no_pair_until_leases_would_have_run_out() -> None:
    fleet = seen(info("bootstrap"), info("p0"), info("d0"))
    fleet.see([info("bootstrap", epoch=101)], 1.0)
    assert names(fleet) == ["p0-d0"]
    fleet.see([info("bootstrap", epoch=101), info("d0", lease_left_s=10.0)], 4.0)
    assert names(fleet) == ["p0-d0"]
    fleet.see([info("bootstrap", epoch=101), info("d0", lease_left_s=4.0)], 10.0)
    assert fleet.why_no_pair(10.0) == "no prefill is registered"


def test_a_view_tells_who_came_went_and_changed() -> None:
    fleet = Fleet(300.0)
    assert fleet.see([info("p0"), info("d0")], 0.0) == [("d0", "ready"), ("p0", "ready")]
    assert fleet.see([info("p0"), info("d0", lease_left_s=3.0)], 1.0) == []
    changes = fleet.see([info("p0", state=State.DRAINING)], 2.0)
    assert changes == [("d0", "gone"), ("p0", "draining")]
    fleet.strike(fleet.workers["p0"])
    changes = fleet.see([info("p0", epoch=101)], 3.0)
    assert changes == [("p0", "ready")]


def test_load_is_counted_in_rooms_and_tokens_and_leaves_no_trace() -> None:
    fleet = seen(info("p0"), info("d0"))
    pair = only_pair(fleet)
    fleet.take(pair, 2, 300)
    assert (fleet.rooms["p0", 100], fleet.tokens["d0", 100]) == (2, 300)
    for worker in pair.workers:
        fleet.give_back(worker, 2, 300)
    assert (dict(fleet.rooms), dict(fleet.tokens)) == ({}, {})


def test_a_decode_may_serve_alone_while_the_view_is_not_stale() -> None:
    fleet = seen(info("d0"), info("d1", state=State.DRAINING))
    assert [worker.name for worker in fleet.lone_decodes(0.0)] == ["d0"]
    assert fleet.lone_decodes(1000.0) == ()
    assert fleet.has_pickable(Role.DECODE)
    assert not fleet.has_pickable(Role.PREFILL)


def test_a_pair_is_told_by_its_names() -> None:
    pair = only_pair(seen(info("p0"), info("d0")))
    assert (str(pair), str(Pair(None, pair.decode))) == ("p0 -> d0", "d0 alone")
    assert Pair(None, pair.decode).workers == (pair.decode,)

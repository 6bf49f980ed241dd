from __future__ import annotations

from random import Random
from typing import Any

import pytest

from daemons.lb.config import LbConfig
from daemons.lb.fleet import Fleet, Pair, Pick, Wish
from daemons.lb.pairing import NoPair, Pairing, pairing_of
from daemons.protocol.topology import Fingerprint, State

from .test_fleet import info

OTHER = Fingerprint("other", "fp32", 16, 2, 2, 8)


def pairing(*names: str, **settings: Any) -> Pairing:
    config = LbConfig(**settings)
    fleet = Fleet(config.stale_s)
    fleet.see([info(name) for name in names], 0.0)
    return pairing_of(config, fleet, Random(1))


def named(pick: Pick | None) -> str:
    assert pick is not None
    return str(pick.pair)


def load(choice: Pairing, prefill: str, decode: str, rooms: int, tokens: int = 0) -> None:
    workers = choice.fleet.workers
    choice.fleet.take(Pair(workers[prefill], workers[decode]), rooms, tokens)


def test_each_role_has_its_policy_and_the_reason_names_both() -> None:
    choice = pairing("p0", "p1", "d0", "d1")
    load(choice, "p0", "d1", 2)
    pick = choice.pick(Wish(1), 0.0)
    assert named(pick) == "p1 -> d0"
    assert pick is not None
    assert pick.because == "p1 least rooms: 0; d0 fewest rooms: 0"


def test_a_decode_is_chosen_among_those_that_match_the_prefill() -> None:
    choice = pairing()
    infos = [info("p0"), info("d0"), info("p1", fingerprint=OTHER), info("d1", fingerprint=OTHER)]
    choice.fleet.see(infos, 0.0)
    assert {named(choice.pick(Wish(1), 0.0)) for _ in range(8)} == {"p0 -> d0", "p1 -> d1"}


def test_without_a_place_there_is_nobody_for_now_and_without_workers_nobody_at_all() -> None:
    choice = pairing("p0", "d0", max_rooms_per_decode=2)
    load(choice, "p0", "d0", 2)
    assert choice.pick(Wish(1), 0.0) is None
    choice.fleet.see([info("p0")], 0.0)
    with pytest.raises(NoPair, match="no decode is registered"):
        choice.pick(Wish(1), 0.0)


def test_whoever_failed_this_request_is_met_again_only_when_there_is_no_other() -> None:
    choice = pairing("p0", "d0", "d1")
    avoid = {("d0", 100)}
    assert {named(choice.pick(Wish(1), 0.0, avoid)) for _ in range(4)} == {"p0 -> d1"}
    assert choice.offers_others(0.0, avoid)
    both = avoid | {("d1", 100)}
    assert named(choice.pick(Wish(1), 0.0, both)) in ("p0 -> d0", "p0 -> d1")
    assert not choice.offers_others(0.0, both)


def test_a_resting_worker_is_chosen_only_when_there_is_no_other() -> None:
    choice = pairing("p0", "d0", "d1", breaker_failures=1)
    choice.breakers.bad(("d0", 100), 0.0)
    assert {named(choice.pick(Wish(1), 0.0)) for _ in range(4)} == {"p0 -> d1"}
    choice.breakers.bad(("d1", 100), 0.0)
    assert {named(choice.pick(Wish(1), 0.0)) for _ in range(4)} == {"p0 -> d0", "p0 -> d1"}


def test_a_decode_without_memory_for_the_request_is_chosen_only_when_there_is_no_other() -> None:
    choice = pairing("p0", "d0", "d1", decode_policy="round_robin")
    choice.credits.hear(("d0", 100), 10, 0.0)
    assert {named(choice.pick(Wish(1, tokens=11), 0.0)) for _ in range(4)} == {"p0 -> d1"}
    assert {named(choice.pick(Wish(1, tokens=10), 0.0)) for _ in range(4)} == {
        "p0 -> d0",
        "p0 -> d1",
    }


def test_of_equal_decodes_the_one_with_the_faster_way_from_this_prefill_is_chosen() -> None:
    choice = pairing("p0", "d0", "d1")
    choice.rates[("p0", "d1")] = 2e9
    choice.rates[("p0", "d0")] = 1e9
    assert {named(choice.pick(Wish(1), 0.0)) for _ in range(4)} == {"p0 -> d1"}


def test_no_prefill_is_an_error_where_decode_may_not_compute_prompts() -> None:
    with pytest.raises(NoPair, match="no prefill is registered"):
        pairing("d0").pick(Wish(1), 0.0)


@pytest.mark.parametrize("how", ["when_alone", "threshold"])
def test_without_a_prefill_decode_serves_alone_where_it_may(how: str) -> None:
    choice = pairing("d0", local_prefill=how)
    pick = choice.pick(Wish(1, prompt_tokens=1000), 0.0)
    assert named(pick) == "d0 alone"
    assert pick is not None
    assert pick.because == "local prefill, no prefill is ready; d0 fewest rooms: 0"
    choice.fleet.see([info("d0"), info("p0", state=State.DRAINING)], 0.0)
    assert named(choice.pick(Wish(1), 0.0)) == "d0 alone"


def test_a_prefill_that_does_not_match_is_the_operators_affair() -> None:
    choice = pairing(local_prefill="when_alone")
    choice.fleet.see([info("p0", fingerprint=OTHER), info("d0")], 0.0)
    with pytest.raises(NoPair, match="do not match"):
        choice.pick(Wish(1), 0.0)


def test_short_prompts_need_no_prefill_with_a_threshold() -> None:
    choice = pairing("p0", "d0", local_prefill="threshold", local_prefill_tokens=10)
    assert named(choice.pick(Wish(1, prompt_tokens=9), 0.0)) == "d0 alone"
    assert named(choice.pick(Wish(1, prompt_tokens=10), 0.0)) == "p0 -> d0"
    assert named(choice.pick(Wish(2, prompt_tokens=9), 0.0)) == "d0 alone"


def test_decodes_that_are_full_let_a_lone_request_wait() -> None:
    choice = pairing("d0", local_prefill="when_alone", max_rooms_per_decode=1)
    choice.fleet.take(Pair(None, choice.fleet.workers["d0"]), 1)
    assert choice.pick(Wish(1), 0.0) is None

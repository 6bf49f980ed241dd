from __future__ import annotations

import msgspec
import pytest

from daemons.bootstrap import registry as registry_module
from daemons.bootstrap.registry import (
    Change,
    Conflict,
    Coords,
    Invalid,
    NotReady,
    Registry,
    Unknown,
)
from daemons.protocol.topology import Fingerprint, Registration, Role, Shape, State

FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)
RANK0 = Coords(0, 0, 0, 0)


def said(instance: str = "p0", **changes: object) -> Registration:
    base = Registration(
        instance=instance,
        role=Role.PREFILL,
        epoch=100,
        state=State.READY,
        http_host="127.0.0.1",
        http_port=80,
        lease_s=10.0,
        version="1",
        fingerprint=FINGERPRINT,
        rank_ip="127.0.0.1",
        rank_port=7000,
    )
    return msgspec.structs.replace(base, **changes)


def tp2(rank: int, **changes: object) -> Registration:
    return said(shape=Shape(attn_tp_size=2), attn_tp_rank=rank, rank_port=7000 + rank, **changes)


def state_of(registry: Registry, name: str, now_s: float = 0.0) -> State:
    return next(i.state for i in registry.instances(now_s, 0.0) if i.instance == name)


def test_a_registered_rank_is_found() -> None:
    registry = Registry()
    assert registry.put(said(), 0.0) is Change.NEW
    route = registry.route("p0", RANK0, 1.0)
    assert (route.rank_ip, route.rank_port, route.epoch) == ("127.0.0.1", 7000, 100)
    assert registry.topology("p0", 1.0).fingerprint == FINGERPRINT


def test_an_instance_is_not_ready_until_all_ranks_are_in() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    with pytest.raises(NotReady, match="1 of 2 ranks"):
        registry.topology("p0", 0.0)
    assert state_of(registry, "p0") is State.STARTING
    assert registry.put(tp2(1), 0.0) is Change.RANK
    assert registry.route("p0", Coords(0, 0, 1, 0), 0.0).rank_port == 7001
    assert state_of(registry, "p0") is State.READY


def test_a_rank_that_registers_twice_counts_once() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    assert registry.put(tp2(0), 1.0) is Change.RENEWED
    with pytest.raises(NotReady, match="1 of 2 ranks"):
        registry.topology("p0", 1.0)


def test_a_newer_epoch_replaces_all_ranks_of_the_older_life() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    registry.put(tp2(1), 0.0)
    assert registry.put(tp2(0, epoch=101), 1.0) is Change.REPLACED
    with pytest.raises(NotReady, match="1 of 2 ranks"):
        registry.route("p0", Coords(0, 0, 1, 0), 1.0)


def test_a_newer_life_may_have_another_shape_and_fingerprint() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    other = msgspec.structs.replace(FINGERPRINT, page_size=32)
    registry.put(said(epoch=101, fingerprint=other), 0.0)
    assert registry.topology("p0", 0.0).fingerprint.page_size == 32


@pytest.mark.parametrize(
    ("registration", "both"),
    [
        (tp2(1, epoch=99), ("100", "99")),
        (said(shape=Shape(attn_tp_size=4)), ("tp 2", "tp 4")),
        (
            tp2(1, fingerprint=msgspec.structs.replace(FINGERPRINT, page_size=32)),
            ("page_size: ours 32", "theirs 16"),
        ),
        (tp2(1, role=Role.DECODE), ("prefill", "decode")),
    ],
)
def test_a_registration_that_contradicts_shows_both_values_and_changes_nothing(
    registration: Registration, both: tuple[str, str]
) -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    before = registry.instances(0.0, 0.0)
    with pytest.raises(Conflict) as caught:
        registry.put(registration, 0.0)
    assert all(value in str(caught.value) for value in both)
    assert registry.instances(0.0, 0.0) == before


@pytest.mark.parametrize(
    ("registration", "reason"),
    [
        (said(attn_tp_rank=1), "outside the shape"),
        (said(role=Role.BOOTSTRAP), "not yours"),
        (said("bootstrap"), "not yours"),
        (said(state=State.LOST), "not yours"),
        (said(rank_ip=""), "half an inbox"),
        (said(rank_port=0), "half an inbox"),
        (said(fingerprint=None), "a ready worker"),
        (said(rank_ip="", rank_port=0), "a ready worker"),
        (said("lb", role=Role.LB), "no fingerprint"),
        (said("lb", role=Role.LB, fingerprint=None, shape=Shape(pp_size=2)), "one rank"),
    ],
)
def test_a_registration_that_contradicts_itself_is_refused(
    registration: Registration, reason: str
) -> None:
    registry = Registry()
    with pytest.raises(Invalid, match=reason):
        registry.put(registration, 0.0)
    assert registry.lives == {}


def test_a_worker_may_register_while_it_starts_and_counts_when_it_is_whole() -> None:
    registry = Registry()
    registry.put(said(state=State.STARTING, fingerprint=None, rank_ip="", rank_port=0), 0.0)
    assert state_of(registry, "p0") is State.STARTING
    with pytest.raises(NotReady, match="0 of 1 ranks"):
        registry.route("p0", RANK0, 0.0)
    registry.put(tp2(0), 1.0)  # now the shape is known
    registry.put(tp2(1), 1.0)
    assert state_of(registry, "p0", 1.0) is State.READY


def test_an_instance_is_lost_when_a_lease_runs_out_and_back_when_it_is_renewed() -> None:
    registry = Registry()
    registry.put(said(), 0.0)
    assert registry.tick(9.9) == []
    assert registry.tick(10.0) == [("p0", Change.LOST)]
    assert registry.tick(11.0) == []
    assert state_of(registry, "p0", 11.0) is State.LOST
    with pytest.raises(NotReady, match=r"lost: its lease ran out 1\.0 s ago"):
        registry.route("p0", RANK0, 11.0)
    assert registry.put(said(), 12.0) is Change.STATE
    assert registry.route("p0", RANK0, 12.0).epoch == 100
    assert registry.tick(22.0) == [("p0", Change.LOST)]


def test_a_lost_rank_loses_its_instance() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    registry.put(tp2(1), 5.0)
    assert state_of(registry, "p0", 11.0) is State.LOST


def test_a_lost_instance_is_listed_for_a_time_and_then_forgotten() -> None:
    registry = Registry(forget_s=60.0)
    registry.put(said(), 0.0)
    registry.tick(69.0)
    assert len(registry.instances(69.0, 0.0)) == 1
    assert registry.tick(70.0) == [("p0", Change.FORGOTTEN)]
    assert registry.instances(70.0, 0.0) == []


def test_one_draining_rank_makes_a_draining_instance_that_is_still_found() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    assert registry.put(tp2(1, state=State.DRAINING), 0.0) is Change.RANK
    assert state_of(registry, "p0") is State.DRAINING
    assert registry.topology("p0", 0.0).state is State.DRAINING
    assert registry.put(tp2(1), 0.0) is Change.STATE
    assert state_of(registry, "p0") is State.READY


def test_without_a_name_the_only_prefill_is_meant() -> None:
    registry = Registry()
    with pytest.raises(NotReady, match="no prefill is registered"):
        registry.topology(None, 0.0)
    registry.put(said("d0", role=Role.DECODE), 0.0)
    registry.put(said("p0"), 0.0)
    assert registry.topology(None, 0.0).instance == "p0"
    registry.put(said("p1"), 5.0)
    with pytest.raises(Conflict, match="p0, p1"):
        registry.route(None, RANK0, 5.0)
    assert registry.topology(None, 12.0).instance == "p1"  # p0 is lost by then


def test_unknown_names_and_ranks_are_told() -> None:
    registry = Registry()
    registry.put(said(), 0.0)
    with pytest.raises(Unknown, match="no instance p9"):
        registry.topology("p9", 0.0)
    with pytest.raises(Unknown, match="no rank dp 0 cp 0 tp 3 pp 0; its shape is dp 1"):
        registry.route("p0", Coords(0, 0, 3, 0), 0.0)
    registry.put(said("lb", role=Role.LB, fingerprint=None, rank_ip="", rank_port=0), 0.0)
    with pytest.raises(Unknown, match="lb is a lb"):
        registry.topology("lb", 0.0)


def test_deleting_takes_out_the_life_that_was_meant() -> None:
    registry = Registry()
    registry.put(tp2(0), 0.0)
    registry.put(tp2(1), 0.0)
    with pytest.raises(Conflict, match="registered 100, yours 99"):
        registry.delete("p0", 99, None)
    with pytest.raises(Unknown):
        registry.delete("p0", 100, [RANK0, Coords(0, 0, 5, 0)])
    assert registry.topology("p0", 0.0).epoch == 100
    registry.delete("p0", 100, [RANK0])
    with pytest.raises(NotReady, match="1 of 2"):
        registry.topology("p0", 0.0)
    registry.delete("p0", 100, None)
    assert registry.lives == {}
    with pytest.raises(Unknown):
        registry.delete("p0", 100, None)


def test_the_list_tells_roles_ranks_and_leases() -> None:
    registry = Registry()
    registry.put(said("lb", role=Role.LB, fingerprint=None, rank_ip="", rank_port=0), 3.0)
    registry.put(tp2(0), 5.0)
    lb, p0 = registry.instances(6.0, 1000.0)
    assert (lb.instance, lb.role, lb.state, lb.ranks) == ("lb", Role.LB, State.READY, 1)
    assert (p0.ranks, p0.ranks_expected, p0.lease_left_s, p0.since_s) == (1, 2, 9.0, 999.0)


def test_the_book_is_bounded_but_known_instances_still_renew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_module, "INSTANCES_LIMIT", 1)
    registry = Registry()
    registry.put(said("p0"), 0.0)
    with pytest.raises(NotReady, match="full"):
        registry.put(said("p1"), 0.0)
    assert registry.put(said("p0"), 1.0) is Change.RENEWED

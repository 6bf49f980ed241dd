"""One word for the cluster, with its reasons."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from daemons.protocol.story import WorkerStatus
from daemons.protocol.topology import Fingerprint, InstanceInfo, Role
from pdctl.health import Health, Level, health_of, kv_share, state_of
from pdctl.places import Place
from pdctl.survey import Survey
from tests.support.fake_fleet import instance, worker_status

ROLES = {"p0": Role.PREFILL, "d0": Role.DECODE}


def said(name: str, **more: Any) -> WorkerStatus:
    return msgspec.convert(worker_status(name, ROLES[name].value, {}) | more, WorkerStatus)


def listed(name: str, **more: Any) -> InstanceInfo:
    row = instance(name, ROLES[name].value, 1, "ready") | more
    return msgspec.convert(row, InstanceInfo)


def survey(**changes: Any) -> Survey:
    """A well cluster, but for ``changes``."""
    places = {
        "bootstrap": Place("bootstrap", Role.BOOTSTRAP, "local", "127.0.0.1", 1),
        "p0": Place("p0", Role.PREFILL, "local", "127.0.0.1", 2),
        "d0": Place("d0", Role.DECODE, "local", "127.0.0.1", 3),
        "lb": Place("lb", Role.LB, "local", "127.0.0.1", 4),
    }
    well = {
        "places": places,
        "instances": {name: listed(name) for name in ROLES},
        "phone_book_trouble": "",
        "statuses": {name: said(name) for name in ROLES},
        "lb_health": (200, ""),
        "troubles": {},
    }
    return Survey(**{**well, **changes})


def test_a_well_cluster_is_ok_without_reasons() -> None:
    health = health_of(survey())
    assert health == Health(Level.OK, (), False)
    assert health.line == "HEALTH_OK"


def test_a_draining_worker_is_a_warning_with_its_rooms() -> None:
    statuses = {"p0": said("p0"), "d0": said("d0", state="draining", rooms={"running": 3})}
    health = health_of(survey(statuses=statuses))
    assert "d0 draining (3 rooms left)" in health.reasons
    assert "no decode is ready" in health.reasons
    assert health.level is Level.ERR  # it is the only one


@pytest.mark.parametrize(
    ("rooms", "words"),
    [(3, "d0 draining (3 rooms left, 42 s to its deadline)"),
     (1, "d0 draining (1 room left, 42 s to its deadline)")],
)  # fmt: skip
def test_one_that_stops_says_how_long_its_rooms_have(rooms: int, words: str) -> None:
    leaving = said("d0", state="draining", rooms={"running": rooms}, drain_left_s=41.7)
    assert words in health_of(survey(statuses={"p0": said("p0"), "d0": leaving})).reasons


def test_a_worker_that_the_phone_book_lost_is_named() -> None:
    health = health_of(
        survey(
            instances={"p0": listed("p0"), "d0": listed("d0", state="lost")},
            statuses={"p0": said("p0")},
            troubles={"d0": "refused"},
        )
    )
    assert "d0 is lost (refused)" in health.reasons


def test_a_worker_that_is_nowhere_is_absent() -> None:
    seen = survey(instances={"p0": listed("p0")}, statuses={"p0": said("p0")})
    assert state_of(seen, "d0") == "absent"
    assert "d0 is not in the phone book" in health_of(seen).reasons


def test_a_silent_phone_book_is_an_error_but_not_unreachable_while_others_answer() -> None:
    health = health_of(survey(phone_book_trouble="refused", instances={}))
    assert health.level is Level.ERR
    assert not health.unreachable
    assert health.reasons == ("the phone book is silent (refused)",)


def test_a_cluster_of_which_nobody_answers_is_unreachable() -> None:
    health = health_of(
        survey(phone_book_trouble="refused", instances={}, statuses={}, lb_health=(0, "refused"))
    )
    assert health.unreachable


@pytest.mark.parametrize(
    ("lb_health", "state"),
    [((200, ""), "ready"), ((503, "no pair"), "not-ready"), ((0, "x"), "silent")],
)
def test_the_state_of_lb_is_that_of_its_health(lb_health: tuple[int, str], state: str) -> None:
    assert state_of(survey(lb_health=lb_health), "lb") == state


def test_lb_without_a_pair_gives_its_reason() -> None:
    assert "lb is not ready (no pair)" in health_of(survey(lb_health=(503, "no pair"))).reasons


def test_pools_and_peers_are_looked_at() -> None:
    pages = {"free": 1, "cached": 0, "request": 96, "writer": 0, "quarantined": 3}
    peers = {"p0/0@7": "dead", "p1/0@7": "alive"}
    reasons = health_of(
        survey(statuses={"d0": said("d0", pages=pages, peers=peers), "p0": said("p0")})
    )
    assert reasons.reasons == (
        "d0 has almost no KV page free",
        "d0 has 3 pages in quarantine",
        "d0 does not hear p0/0@7",
    )
    assert reasons.level is Level.WARN


def test_pools_of_layers_with_a_window_are_looked_at() -> None:
    pages = {"free": 9, "cached": 0, "request": 0, "writer": 0, "quarantined": 0}
    window = {"free": 0, "cached": 1, "request": 96, "writer": 0, "quarantined": 3}
    d0 = said("d0", pages=pages, window_pages=window)
    assert health_of(survey(statuses={"d0": d0, "p0": said("p0")})).reasons == (
        "d0 has almost no window page free",
        "d0 has 3 window pages in quarantine",
    )


def test_versions_files_and_fingerprints_must_agree() -> None:
    print_of = {
        "model": "m",
        "dtype": "fp32",
        "page_size": 16,
        "layers": 2,
        "kv_heads": 1,
        "head_dim": 8,
    }
    health = health_of(
        survey(
            instances={
                "p0": listed("p0", fingerprint=print_of),
                "d0": listed("d0", fingerprint=print_of | {"page_size": 64}, version="0.2.0"),
            },
            statuses={"p0": said("p0", config_hash="a"), "d0": said("d0", config_hash="b")},
        )
    )
    assert health.reasons == (
        "several versions run: 0.1.0, 0.2.0",
        "p0 and d0 cannot pair (page_size: p0 16, d0 64)",
        "daemons run on different cluster files: d0 on b",
    )
    assert isinstance(listed("p0", fingerprint=print_of).fingerprint, Fingerprint)


def test_cached_pages_count_as_free() -> None:
    assert kv_share({"free": 50, "cached": 25}, 100) == 0.25
    assert kv_share({}, 0) == 0.0


def test_a_daemon_on_another_file_than_ours_is_named() -> None:
    seen = survey(statuses={"p0": said("p0", config_hash="a"), "d0": said("d0", config_hash="b")})
    assert health_of(seen, "a").reasons == (
        "another cluster file than ours (a) is in use: d0 on b",
    )
    same = survey(statuses={name: said(name, config_hash="a") for name in ("p0", "d0")})
    assert health_of(same, "a").reasons == ()

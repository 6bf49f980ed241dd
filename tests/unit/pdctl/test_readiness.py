"""Are the daemons up yet?"""

from __future__ import annotations

from daemons.cluster.load import load
from pdctl.readiness import waiting
from tests.support.fake_fleet import Fleet

ALL = ("bootstrap", "p0", "d0", "lb")


def test_nobody_is_waited_for_when_all_answer(fleet: Fleet) -> None:
    assert waiting(load(fleet.config).cluster, ALL).is_over


def test_a_worker_must_be_ready_in_the_phone_book(fleet: Fleet) -> None:
    fleet.bootstrap.routes["/instances"] = 200, fleet.instances(p0="starting")[:1]
    reasons = waiting(load(fleet.config).cluster, ALL).reasons
    assert reasons == {"p0": "starting", "d0": "not in the phone book yet"}


def test_a_workers_own_health_must_be_well_too(fleet: Fleet) -> None:
    fleet.d0.routes["/health"] = 503, {"error": {"message": "the ranks are loading"}}
    assert waiting(load(fleet.config).cluster, ALL).reasons == {"d0": "the ranks are loading"}


def test_lb_needs_a_pair(fleet: Fleet) -> None:
    fleet.lb.routes["/health"] = 503, {"error": {"message": "no pair"}}
    assert waiting(load(fleet.config).cluster, ALL).reasons == {"lb": "no pair"}


def test_where_no_whole_pair_is_ours_it_is_enough_that_lb_answers(fleet: Fleet) -> None:
    fleet.lb.routes["/health"] = 503, {"error": {"message": "no pair"}}
    assert waiting(load(fleet.config).cluster, ("bootstrap", "p0", "lb")).is_over


def test_a_silent_phone_book_is_the_reason_of_its_workers(fleet: Fleet) -> None:
    fleet.bootstrap.stop()
    reasons = waiting(load(fleet.config).cluster, ("p0", "bootstrap")).reasons
    assert set(reasons) == {"p0", "bootstrap"}
    assert all("Connection refused" in why for why in reasons.values())

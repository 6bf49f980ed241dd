"""One look at the whole cluster."""

from __future__ import annotations

import msgspec

from daemons.cluster.load import load
from pdctl.survey import located, look, rooms_of, stories_of
from tests.support.fake_fleet import Fleet
from tests.support.stories import PREFILL, ROOM


def test_everybody_is_asked_through_the_phone_book(fleet: Fleet) -> None:
    seen = look(load(fleet.config).cluster)
    assert set(seen.statuses) == {"p0", "d0", "lb"}
    assert seen.statuses["p0"].rooms["inflight"] == 3
    assert seen.lb_health == (200, '{"status": "ok"}')
    assert seen.troubles == {}
    assert seen.phone_book_trouble == ""


def test_a_silent_phone_book_leaves_what_the_file_knows(fleet: Fleet) -> None:
    fleet.bootstrap.stop()
    seen = look(load(fleet.config).cluster)
    assert "Connection refused" in seen.phone_book_trouble
    assert set(seen.statuses) == {"lb"}
    assert seen.troubles == {"p0": "not in the phone book", "d0": "not in the phone book"}


def test_an_answer_of_another_form_is_a_trouble_of_that_daemon_alone(fleet: Fleet) -> None:
    fleet.p0.routes["/status"] = 200, {"instance": "p0"}
    seen = look(load(fleet.config).cluster)
    assert "answers strangely" in seen.troubles["p0"]
    assert "d0" in seen.statuses


def test_rooms_come_by_daemon_and_troubles_aside(fleet: Fleet) -> None:
    fleet.p0.routes["/rooms"] = 200, {"rooms": []}
    fleet.d0.routes["/rooms"] = 200, {"bogus": []}
    fleet.lb.routes["/rooms"] = 503, {"error": {"message": "starting"}}
    told, troubles = rooms_of(located(load(fleet.config).cluster))
    assert told == {"p0": []}
    assert set(troubles) == {"d0", "lb"}
    assert troubles["lb"] == "starting"


def test_a_room_that_a_daemon_does_not_know_is_no_trouble(fleet: Fleet) -> None:
    path = f"/rooms/{ROOM:014x}"
    fleet.p0.routes[path] = 200, {"stories": [msgspec.to_builtins(PREFILL)]}
    told, troubles = stories_of(located(load(fleet.config).cluster), ROOM)
    assert told == [PREFILL]
    assert troubles == {}

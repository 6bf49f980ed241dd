"""Other daemons, seen from here."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from daemons.cluster.load import load
from pdctl.finding import Status
from pdctl.places import Place
from pdctl.reach import RANK0, check_all, check_clock, check_file, check_inbox, check_reach, names
from pdctl.survey import located
from tests.support.fake_fleet import Fleet, worker_status


@pytest.fixture
def known(fleet: Fleet) -> dict[str, Place]:
    return located(load(Path(fleet.config)).cluster)


def test_who_answers_is_reached_and_who_does_not_fails(
    fleet: Fleet, known: dict[str, Place]
) -> None:
    assert check_reach(known["p0"]).status is Status.OK
    fleet.p0.routes["/health"] = 503, {}
    assert check_reach(known["p0"]).status is Status.WARN
    fleet.p0.stop()
    found = check_reach(known["p0"])
    assert (found.status, "firewall" in found.hint) == (Status.FAIL, True)


@pytest.mark.parametrize(
    ("skew_s", "status"), [(0.0, Status.OK), (-0.5, Status.WARN), (60.0, Status.FAIL)]
)
def test_a_clock_is_compared_by_the_time_in_an_answer(
    skew_s: float, status: Status, fleet: Fleet, known: dict[str, Place]
) -> None:
    fleet.p0.routes["/rooms"] = lambda _: (200, {"rooms": [], "now_s": time.time() + skew_s})
    found = check_clock(known["p0"])
    assert found.status is status, found


def test_a_daemon_that_does_not_tell_its_time_is_a_warning(
    fleet: Fleet, known: dict[str, Place]
) -> None:
    fleet.p0.routes["/rooms"] = 200, {"rooms": []}
    assert check_clock(known["p0"]).status is Status.WARN


def test_the_data_port_is_the_one_that_the_phone_book_tells(
    fleet: Fleet, known: dict[str, Place]
) -> None:
    where = f"/route?instance=p0&{RANK0}"
    with socket.create_server(("127.0.0.1", 0)) as inbox:
        route = {"rank_ip": "127.0.0.1", "rank_port": inbox.getsockname()[1], "instance": "p0",
                 "epoch": 7}  # fmt: skip
        fleet.bootstrap.routes[where] = 200, route
        assert check_inbox(known["p0"], known["bootstrap"]).status is Status.OK
    assert check_inbox(known["p0"], known["bootstrap"]).status is Status.FAIL
    del fleet.bootstrap.routes[where]
    assert check_inbox(known["p0"], known["bootstrap"]).status is Status.WARN


def test_another_file_is_told_with_both_hashes(fleet: Fleet, known: dict[str, Place]) -> None:
    said = worker_status("p0", "prefill", {}, config_hash="aaaa")
    fleet.p0.routes["/status"] = 200, said
    assert check_file(known["p0"], "aaaa").status is Status.OK
    found = check_file(known["p0"], "bbbb")
    assert (found.status, found.value) == (
        Status.WARN, "it runs on aaaa, this file is bbbb",
    )  # fmt: skip


def test_all_checks_have_names_that_are_known_before(fleet: Fleet, known: dict[str, Place]) -> None:
    found = [check.name for check in check_all(known, "aaaa")]
    assert found
    assert set(found) <= set(names(known))

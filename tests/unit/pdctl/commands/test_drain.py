"""Out of routing and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdctl.commands import drain
from pdctl.errors import Exit
from tests.support.fake_fleet import DECODE_ROOMS, Fleet, Said, worker_status

Pdctl = Callable[..., Said]


@pytest.fixture
def empties(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """d0 has 2 rooms, one less at each look."""
    left = [2, 2, 1, 0]

    def status(_: bytes) -> tuple[int, object]:
        count = left.pop(0) if len(left) > 1 else left[0]
        return 200, worker_status("d0", "decode", {"running": count})

    fleet.d0.routes["/status"] = status
    fleet.d0.routes["/drain"] = 200, {"state": "draining"}
    monkeypatch.setattr(drain, "LOOK_S", 0.001)
    return fleet


def test_a_drain_waits_until_the_rooms_have_finished(empties: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("drain", "d0", "-c", empties.config, "--yes")
    assert said.code == Exit.OK
    assert empties.d0.posted == [("/drain", {"on": True})]
    counted = [line.split()[:3] for line in said.err.splitlines() if " left, " in line]
    assert counted == [["d0:", "2", "rooms"], ["d0:", "1", "room"]]


def test_detach_does_not_wait(empties: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("drain", "d0", "-c", empties.config, "--yes", "--detach").code == Exit.OK
    assert empties.d0.posted == [("/drain", {"on": True})]


def test_a_deadline_that_passes_is_exit_6_and_it_stays_draining(fleet: Fleet, pdctl: Pdctl) -> None:
    fleet.d0.routes["/status"] = 200, worker_status("d0", "decode", DECODE_ROOMS)
    fleet.d0.routes["/drain"] = 200, {}
    said = pdctl("drain", "d0", "-c", fleet.config, "--yes", "--deadline", "0")
    assert said.code == Exit.TIMEOUT
    assert "pdctl undrain d0" in said.err
    assert fleet.d0.posted == [("/drain", {"on": True})]


def test_force_ends_the_rooms_that_are_left_after_the_deadline(
    empties: Fleet, pdctl: Pdctl
) -> None:
    said = pdctl("drain", "d0", "-c", empties.config, "--yes", "--deadline", "0", "--force")
    assert said.code == Exit.OK
    assert empties.d0.posted == [("/drain", {"on": True}), ("/drain", {"on": True, "force": True})]
    assert "rooms are ended" in said.err


def test_undrain_puts_it_back(empties: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("undrain", "d0", "-c", empties.config).code == Exit.OK
    assert empties.d0.posted == [("/drain", {"on": False})]


def test_a_dry_run_changes_nothing_and_warns_of_the_last_one(empties: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("drain", "d0", "-c", empties.config, "--dry-run")
    assert said.code == Exit.OK
    assert "the only ready decode" in said.err
    assert empties.d0.posted == []


def test_without_a_terminal_or_yes_nothing_is_changed(empties: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("drain", "d0", "-c", empties.config).code == Exit.USAGE
    assert empties.d0.posted == []


def test_who_cannot_be_drained_is_told(fleet: Fleet, pdctl: Pdctl) -> None:
    base = ("-c", fleet.config, "--yes")
    assert pdctl("drain", "p9", *base).code == Exit.NOT_FOUND
    assert pdctl("drain", "lb", *base).code == Exit.USAGE
    fleet.d0.stop()
    assert pdctl("drain", "d0", *base).code == Exit.UNREACHABLE
    fleet.bootstrap.stop()
    assert pdctl("drain", "d0", *base).code == Exit.UNREACHABLE


def test_a_refusal_is_told_in_the_daemons_words(empties: Fleet, pdctl: Pdctl) -> None:
    empties.d0.routes["/drain"] = 409, {"error": {"message": "d0 is starting"}}
    said = pdctl("undrain", "d0", "-c", empties.config)
    assert (said.code, "d0 is starting" in said.err) == (Exit.FAILED, True)

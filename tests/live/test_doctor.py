"""A write over every pair of real daemons, verified; and one that must not pass."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, post
from tests.support.faults import Right, healthy

pytestmark = pytest.mark.live
WORKERS = ("p0", "p1", "d0", "d1")


@pytest.fixture
def fleet(chaos_fleet: Cluster, right: Right) -> Iterator[Cluster]:
    healthy(chaos_fleet, right, workers=WORKERS, within_s=60)
    yield chaos_fleet
    post(f"{chaos_fleet.url('p0')}/drain", {"on": False})
    healthy(chaos_fleet, right, workers=WORKERS, within_s=60)


def test_every_pair_is_written_over_and_verified(fleet: Cluster) -> None:
    done = fleet.pdctl("doctor", "-o", "json")
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for pair in ("pair-p0-d0", "pair-p0-d1", "pair-p1-d0", "pair-p1-d1"):
        assert found[pair]["status"] == "ok", found[pair]
        assert found[pair]["value"].startswith("verified")
        assert found[pair]["bytes_per_s"] > 0
    for name in ("clock-p0", "inbox-d0", "file-d1", "reach-lb"):
        assert found[name]["status"] == "ok", found[name]

    post(f"{fleet.url('p0')}/drain", {"on": True})
    done = fleet.pdctl("check", "pair-p0-d0", "--nagios")
    assert done.returncode == 2, done.stdout
    assert done.stdout.startswith("PD CRITICAL - pair-p0-d0: ")
    events = json.loads(fleet.pdctl("events", "-o", "json").stdout)["events"]
    assert [event["subject"] for event in events if event["kind"] == "draining"] == ["p0"]

"""Faults that an operator puts in: only where they are allowed, and always visible."""

from __future__ import annotations

import re

import pytest

from tests.support.cluster import Cluster
from tests.support.faults import Right, ask, prompt_of
from tests.support.http import asked

pytestmark = pytest.mark.live


def test_a_cluster_that_does_not_allow_faults_takes_none(smollm: Cluster) -> None:
    told = smollm.pdctl("chaos", "d0", "engine.raise")
    assert told.returncode == 7
    assert "chaos: true" in told.stderr
    for method, body in (("GET", None), ("POST", {"fault": "engine.raise"}), ("DELETE", None)):
        status, said = asked(method, f"{smollm.url('d0')}/chaos", body)
        assert status == 403, said
    assert smollm.status("d0")["chaos"] == []


def test_what_is_armed_is_seen_in_status_until_it_is_cleared(pair: Cluster, right: Right) -> None:
    assert pair.pdctl("chaos", "d0", "engine.raise", "--times", "2").returncode == 0
    assert pair.status("d0")["chaos"] == ["engine.raise x2"]
    told = pair.pdctl("status")
    assert told.returncode == 4
    assert "d0 has faults put in on purpose: engine.raise x2" in told.stdout
    assert ask(pair, prompt_of(12)).end().status == 500
    assert pair.status("d0")["counters"]["chaos:engine.raise"] >= 1
    assert "engine.raise" in pair.pdctl("chaos", "d0", "--list").stderr
    assert pair.pdctl("chaos", "d0", "--clear").returncode == 0
    assert pair.status("d0")["chaos"] == []
    assert ask(pair, prompt_of(12)).end().ids == right.ids(prompt_of(12))


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("length", [1, 40])
def test_a_forced_retraction_changes_no_text(
    pair: Cluster, right: Right, length: int, times: int
) -> None:
    before = pair.status("d0")["counters"].get("retractions", 0)
    told = pair.pdctl("chaos", "d0", "room.retract", "--times", str(times))
    assert told.returncode == 0, told.stderr
    prompt = prompt_of(length, 70)
    ended = ask(pair, prompt, 30, stream=True).end()
    assert ended.ids == right.ids(prompt, 30), ended
    assert pair.status("d0")["counters"]["retractions"] == before + times


def test_a_page_that_is_spoilt_on_the_way_is_seen_by_its_sum(pair: Cluster, right: Right) -> None:
    prompt = prompt_of(50, 71)
    before = pair.status("d0")["counters"].get("checksum_mismatches", 0)
    told = pair.pdctl("chaos", "p0", "write.corrupt")
    assert told.returncode == 0, told.stderr
    error = ask(pair, prompt).end().error
    assert error is not None
    assert error["cause"] == "transfer.checksum"
    sums = re.search(r"prefill's sum ([0-9a-f]{16}), ours ([0-9a-f]{16})", error["message"])
    assert sums is not None, error
    assert sums[1] != sums[2]
    assert pair.status("d0")["counters"]["checksum_mismatches"] == before + 1
    assert ask(pair, prompt).end().ids == right.ids(prompt)


def test_prefill_has_no_rooms_to_retract(pair: Cluster) -> None:
    told = pair.pdctl("chaos", "p0", "room.retract")
    assert told.returncode == 7
    assert "only a decode" in told.stderr

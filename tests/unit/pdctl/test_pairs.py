"""A write over a pair, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons.cluster.load import load
from daemons.protocol.story import StageTimes, Wire
from pdctl.finding import Check, Status
from pdctl.pairs import matrix, sing
from pdctl.survey import located
from tests.support.fake_fleet import Fleet, worker_status

MIB = 1 << 20


class Singers:
    """Fake workers that serve a room, and what they were asked."""

    def __init__(self, fleet: Fleet, alone: tuple[int, Any], paired: tuple[int, Any]) -> None:
        self.fleet = fleet
        self.asked: list[dict[str, Any]] = []
        info = {"context_length": 64, "max_total_num_tokens": 4096}
        for daemon in (fleet.p0, fleet.d0):
            daemon.routes["/server_info"] = 200, info
        self.answers = {True: alone, False: paired}
        self.tell(0, 0.0)
        fleet.p0.routes["/generate"] = self.prefill
        fleet.d0.routes["/generate"] = self.decode

    def tell(self, written_bytes: int, took_s: float) -> None:
        wire = Wire("tcp", bytes=written_bytes, writing=StageTimes(sum_s=took_s))
        said = worker_status("p0", "prefill", {}, wires={"d0": msgspec.to_builtins(wire)})
        self.fleet.p0.routes["/status"] = 200, said

    def prefill(self, raw: bytes) -> tuple[int, Any]:
        body = json.loads(raw)
        self.asked.append(body)
        self.tell(4 * MIB, 0.2)
        return 200, {"output_ids": [1]}

    def decode(self, raw: bytes) -> tuple[int, Any]:
        body = json.loads(raw)
        return self.answers[bool(body.get("local_prefill"))]

    def sing(self) -> Check:
        cluster = load(Path(self.fleet.config)).cluster
        known = located(cluster)
        return sing(cluster, known["p0"], known["d0"])


SAME = (200, {"output_ids": [1, 2, 3, 4]})


def test_the_same_tokens_verify_the_write_and_its_speed_is_told(fleet: Fleet) -> None:
    singers = Singers(fleet, SAME, SAME)
    found = singers.sing()
    assert (found.name, found.status) == ("pair-p0-d0", Status.OK), found
    assert found.value == "verified, 4.0 MiB by tcp in 200.0 ms, 21 MB/s"
    (body,) = singers.asked
    assert body["bootstrap_instance"] == "p0"
    assert body["bootstrap_port"] == fleet.bootstrap.port
    assert len(body["input_ids"]) == 64 - 4 - 1


def test_other_tokens_than_decode_makes_alone_fail(fleet: Fleet) -> None:
    found = Singers(fleet, SAME, (200, {"output_ids": [9, 9, 9, 9]})).sing()
    assert found.status is Status.FAIL
    assert found.value.startswith("other tokens")


def test_where_decode_may_not_prefill_nothing_is_compared(fleet: Fleet) -> None:
    found = Singers(fleet, (400, {"error": {"message": "no"}}), SAME).sing()
    assert found.status is Status.OK
    assert "not compared" in found.value


def test_a_leg_that_refuses_fails_with_its_words(fleet: Fleet) -> None:
    refusal = 503, {"error": {"message": "peer.unreachable in prealloc (p0)"}}
    found = Singers(fleet, SAME, refusal).sing()
    assert (found.status, found.value) == (Status.FAIL, "peer.unreachable in prealloc (p0)")


@pytest.mark.parametrize("which", ["p0", "d0"])
def test_a_worker_that_is_gone_fails(which: str, fleet: Fleet) -> None:
    singers = Singers(fleet, SAME, SAME)
    known = located(load(Path(fleet.config)).cluster)
    getattr(fleet, which).stop()
    found = sing(load(Path(fleet.config)).cluster, known["p0"], known["d0"])
    assert (found.status, singers.asked) == (Status.FAIL, [])


def test_the_matrix_has_a_row_per_prefill() -> None:
    found = [
        Check("pair-p0-d0", Status.OK, "", "", ("p0", "d0"), 1e9),
        Check("pair-p0-d1", Status.FAIL, "", "", ("p0", "d1")),
        Check("pair-p1-d0", Status.OK, "", "", ("p1", "d0"), 2e6),
        Check("python", Status.OK, ""),
    ]
    assert matrix(found) == (["d0", "d1"], [["p0", "1.0 GB/s", "fail"], ["p1", "2 MB/s", "-"]])

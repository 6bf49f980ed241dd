from __future__ import annotations

import pytest

from daemons.protocol.topology import Fingerprint

from .conftest import (
    FakeWorker,
    MakeBalancer,
    read,
)

ONE, TWO = {"text": "a"}, {"text": "ab"}
FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)


async def test_health_says_whether_a_request_would_be_served(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0)
    async with lb.get("/health") as response:
        assert response.status == 503
    lb.see(p0, d0)
    async with lb.get("/health") as response:
        assert await read(response) == (200, {"status": "ok", "pairs": 1})
    assert d0.bodies == []


async def test_rooms_status_fleet_and_metrics_tell_what_was_served(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 200
    room = d0.said["bootstrap_room"]
    async with lb.get("/rooms") as response:
        (row,) = (await response.json())["rooms"]
    assert (row["room"], row["stage"], row["peer"]) == (room, "done", "p0 -> d0")
    async with lb.get("/status") as response:
        status = await response.json()
    assert status["peers"] == {"d0": "ready", "p0": "ready"}
    assert status["counters"] == {
        "requests": 1,
        "failures": 0,
        "retries": 0,
        "local_prefills": 0,
    }
    async with lb.get("/fleet") as response:
        fleet = await response.json()
    assert fleet["pairs"] == [["p0", "d0"]]
    assert [worker["rooms"] for worker in fleet["workers"]] == [0, 0]
    async with lb.get("/metrics") as response:
        text = await response.text()
    assert 'pd_lb_requests_total{path="/generate",status="200"} 1.0' in text


@pytest.mark.parametrize(("name", "status"), [("7", 404), ("zz", 400), ("f" * 15, 404)])
async def test_a_room_nobody_knows_is_told_as_such(
    balancer: MakeBalancer, name: str, status: int
) -> None:
    lb = await balancer()
    async with lb.get(f"/rooms/{name}") as response:
        assert response.status == status

from __future__ import annotations

import pytest

from daemons.cluster.key import ClusterKey
from daemons.protocol.topology import Fingerprint, Role
from daemons.runtime.guard import guard

from .conftest import (
    FakeWorker,
    MakeBalancer,
    MakeWorker,
    read,
    whole,
)

ONE, TWO = {"text": "a"}, {"text": "ab"}
FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)


async def test_models_are_those_of_a_worker_and_a_dead_one_is_passed_over(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker
) -> None:
    d0 = await fake("d0", whole({"data": [{"id": "m", "owned_by": "sglang"}]}))
    lb = await balancer(d0, p0)
    for path in ("/v1/models", "/get_model_info"):
        async with lb.get(path) as response:
            assert (await response.json())["data"][0]["id"] == "m"
    await d0.stop()
    async with lb.get("/v1/models") as response:
        assert await response.json() == {"text": "prefill"}
    await p0.stop()
    async with lb.get("/v1/models") as response:
        assert response.status == 503


async def test_an_abort_is_passed_on_to_every_worker(
    balancer: MakeBalancer, fake: MakeWorker, p0: FakeWorker, d0: FakeWorker
) -> None:
    d1 = await fake("d1", whole({"error": {}}, 404))
    lb = await balancer(p0, d0, d1)
    async with lb.post("/abort_request", {"rid": "r1"}) as response:
        assert await read(response) == (200, {"workers": {"d0": 200, "d1": 404, "p0": 200}})
    assert (p0.said, d0.said, d1.said) == ({"rid": "r1"}, {"rid": "r1"}, {"rid": "r1"})
    lb.see()
    async with lb.post("/abort_request", {"rid": "r1"}) as response:
        assert response.status == 502


KEY = ClusterKey(b"k" * 32, "here")


async def test_with_a_key_workers_are_shown_our_token_and_never_a_clients(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    lb.service.key = KEY
    mine = {"Authorization": "Bearer client's own"}
    for call in (
        lb.post("/generate", {"text": "a"}, headers=mine),
        lb.post("/abort_request", {"rid": "r1"}, headers=mine),
        lb.get("/v1/models", headers=mine),
    ):
        async with call as response:
            assert response.status == 200
    shown = {headers.get("Authorization") for headers in (*p0.headers, *d0.headers)}
    assert shown == {f"Bearer {KEY.token(Role.DECODE)}"}


@pytest.mark.parametrize(
    "body", [b'{"abort_all": true}', b'{"abort_all": 1}', b"[]", b"no json", b""]
)
async def test_with_a_key_only_who_has_the_token_ends_everybodys_requests(
    balancer: MakeBalancer, p0: FakeWorker, body: bytes
) -> None:
    lb = await balancer(p0)
    lb.service.guard = guard(KEY, Role.LB)
    async with lb.post("/abort_request", body) as response:
        assert response.status == 401
    assert p0.bodies == []

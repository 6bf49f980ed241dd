from __future__ import annotations

import asyncio
from random import Random

import msgspec

from daemons.cluster.errors import OperatorError
from daemons.lb.config import LbConfig
from daemons.lb.keys import ApiKeys
from daemons.lb.policies.round_robin import RoundRobin
from daemons.lb.reload import apply, reloaded

from .conftest import FakeWorker, MakeBalancer, MakeWorker, events, idle

SEED = Random(1)


async def test_new_settings_hold_and_an_open_stream_goes_on(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    go = asyncio.Event()
    p0, d0 = await fake("p0", events({"n": 1})), await fake("d0", events(1, 2, between=go))
    lb = await balancer(p0, d0)
    keys = ApiKeys((("anna", b"0" * 32),))
    new = LbConfig(max_items=1, queue=3, decode_policy="round_robin", port=9, attempts=1)
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        await response.content.readany()
        assert apply(lb.service, new, keys, SEED) == ["port"]
        go.set()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    await idle(lb)
    assert lb.service.serving.config.attempts == 1
    assert lb.service.config.port == LbConfig().port
    assert (lb.service.gate.places, lb.service.keys) == (3, keys)
    assert isinstance(lb.service.pairing.decode_policy, RoundRobin)
    async with lb.post("/generate", {"text": "a"}) as response:
        assert response.status == 401


async def test_a_file_that_is_wrong_changes_nothing(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    before = lb.service.config

    def read() -> tuple[LbConfig, ApiKeys | None]:
        raise OperatorError("no policy best", "there are others")

    assert not reloaded(lb.service, read, SEED)
    assert lb.service.config is before
    right = msgspec.structs.replace(before, attempts=2)
    assert reloaded(lb.service, lambda: (right, None), SEED)
    assert lb.service.config.attempts == 2

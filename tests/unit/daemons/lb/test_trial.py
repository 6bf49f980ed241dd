from __future__ import annotations

import asyncio

import pytest

from daemons.lb.client import Client
from daemons.lb.fleet import Pick
from daemons.lb.trial import Trial
from daemons.lb.wire.call import Call, Flow
from daemons.lb.wire.head import Head

from .conftest import Balancer, FakeWorker, MakeBalancer, idle


async def begun(lb: Balancer) -> Trial:
    """Return a try that has begun and was not asked for yet."""
    body = b'{"text": "a"}'
    head = Head("POST", "/generate", {}, keep_alive=True, is_http10=False, length=len(body))
    call = Call(head, body, lambda _: None, Flow())
    trial = lb.service.serving.begun(lb.service.express.read(call), Client(call))
    assert trial is not None
    return trial


@pytest.mark.parametrize("why", [asyncio.CancelledError(), RuntimeError("a defect")])
async def test_a_try_that_failed_before_a_task_had_it_leaves_nothing(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, why: BaseException
) -> None:
    lb = await balancer(p0, d0)
    trial = await begun(lb)
    assert sum(lb.service.fleet.rooms.values()) == 2
    with pytest.raises(type(why)):
        await trial.run(why)
    trial.telling.ended(500, None)
    await idle(lb)
    assert not p0.bodies


async def test_a_try_that_went_well_leaves_nothing(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    trial = await begun(lb)
    answer = await trial.run()
    assert b"decode" in answer.body
    trial.telling.ended(200, None)
    await idle(lb)


async def test_whom_a_failure_is_blamed_on_is_avoided(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    trial = await begun(lb)
    await d0.stop()
    lb.service.pool.close()
    pick = lb.service.pick()
    assert isinstance(pick, Pick)
    with pytest.raises(Exception, match="no connection") as caught:
        await trial.run()
    assert trial.to_avoid(caught.value) == {pick.pair.decode.life}  # type: ignore[arg-type]
    trial.telling.ended(500, None)
    await idle(lb)

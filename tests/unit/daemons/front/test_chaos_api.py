"""Faults over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from daemons.front.chaos_api import ChaosApi
from daemons.front.desk import Desk
from daemons.front.ranks import Ranks, Silent
from daemons.protocol.chaos import Fault, FaultOrder
from daemons.protocol.generate import Drain, Sampling, Submit, ToRank
from daemons.runtime.faults import Injected
from daemons.runtime.http import make_app, run_site

SUBMIT = Submit(7, 1, (1, 2), Sampling(), "p0", 10.0)


@dataclass
class OneRank:
    """Ranks that note their orders."""

    orders: list[object] = field(default_factory=list)
    told: list[ToRank] = field(default_factory=list)
    refused: str = ""
    silent: bool = False

    async def chaos(
        self, order: FaultOrder | None = None, *, clear: bool = False
    ) -> list[dict[str, object]]:
        if self.silent:
            raise Silent("no answer from rank 0")
        self.orders.append("clear" if clear else order)
        return [{"armed": ["write.fail"] if order else [], "refused": self.refused}]

    def tell(self, message: ToRank) -> None:
        self.told.append(message)


@dataclass
class Bench:
    ranks: OneRank
    api: ChaosApi
    config: SimpleNamespace
    http: aiohttp.ClientSession

    async def ask(self, method: str, body: object = None) -> tuple[int, Any]:
        async with self.http.request(method, "/chaos", json=body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    ranks = OneRank()
    api = ChaosApi(cast(Ranks, ranks))
    config = SimpleNamespace(chaos=True, instance="d0")
    app = make_app()
    api.add_to(app, cast(Desk, SimpleNamespace(config=config, ready=[1])))
    site = await run_site(app, "127.0.0.1", 0, stop_s=0.1)
    async with aiohttp.ClientSession(site.url) as http:
        yield Bench(ranks, api, config, http)
    await site.close()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_without_leave_it_is_403_and_no_rank_hears_of_it(bench: Bench, method: str) -> None:
    bench.config.chaos = False
    status, answer = await bench.ask(method, {"fault": "write.fail"})
    assert status == 403
    assert "chaos: true" in answer["error"]["message"]
    assert bench.ranks.orders == []


async def test_a_fault_of_the_rank_goes_there(bench: Bench) -> None:
    status, answer = await bench.ask("POST", {"fault": "write.fail", "times": 2})
    assert (status, answer) == (200, {"armed": ["write.fail"]})
    assert bench.ranks.orders == [FaultOrder(Fault.WRITE_FAIL, times=2)]


async def test_a_fault_of_the_intake_strikes_here(bench: Bench) -> None:
    assert (await bench.ask("POST", {"fault": "intake.raise"}))[0] == 200
    assert await bench.ask("GET") == (200, {"armed": ["intake.raise"]})
    bench.api.tell(Drain(on=True))
    with pytest.raises(Injected):
        bench.api.tell(SUBMIT)
    bench.api.tell(SUBMIT)
    assert bench.ranks.told == [Drain(on=True), SUBMIT]


async def test_clear_takes_all_faults_out(bench: Bench) -> None:
    await bench.ask("POST", {"fault": "intake.raise"})
    assert await bench.ask("DELETE") == (200, {"armed": []})
    assert bench.ranks.orders[-1] == "clear"
    bench.api.tell(SUBMIT)


async def test_what_is_no_order_is_400_and_what_the_rank_refuses_409(bench: Bench) -> None:
    assert (await bench.ask("POST", {"fault": "write.burn"}))[0] == 400
    assert (await bench.ask("POST", {"fault": "write.delay"}))[0] == 400
    assert bench.ranks.orders == []
    bench.ranks.refused = "pages.shrink: 9 wanted, 8 are free"
    status, answer = await bench.ask("POST", {"fault": "pages.shrink", "amount": 9})
    assert status == 409
    assert "9 wanted" in answer["error"]["message"]


async def test_silent_ranks_are_500(bench: Bench) -> None:
    bench.ranks.silent = True
    assert (await bench.ask("GET"))[0] == 500

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest

from daemons.bootstrap.dp_ranks import DpRanks
from daemons.bootstrap.registry import Registry
from daemons.bootstrap.service import Service
from daemons.cluster.key import ClusterKey
from daemons.protocol.topology import Fingerprint, Registration, Role, Shape, State
from daemons.runtime.guard import bearer, guard
from daemons.runtime.http import run_site

P0 = Registration(
    instance="p0",
    role=Role.PREFILL,
    epoch=100,
    state=State.READY,
    http_host="127.0.0.1",
    http_port=80,
    lease_s=10.0,
    version="1",
    fingerprint=Fingerprint("m", "fp32", 16, 2, 2, 8),
    rank_ip="127.0.0.1",
    rank_port=7000,
)
SENTINEL = {
    "prefill_dp_rank": -1,
    "prefill_cp_rank": -1,
    "target_tp_rank": -1,
    "target_pp_rank": -1,
}
RANK0 = dict.fromkeys(SENTINEL, 0)


@dataclass
class Time:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Desk:
    """A phone book that listens, and a clock that stands still."""

    service: Service
    url: str
    http: aiohttp.ClientSession
    time: Time = field(default_factory=Time)

    async def ask(self, method: str, path: str, **how: Any) -> tuple[int, Any]:
        async with self.http.request(method, self.url + path, **how) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, msgspec.json.decode(raw) if is_json else raw.decode()

    async def put(self, registration: Registration) -> tuple[int, Any]:
        return await self.ask("PUT", "/route", data=msgspec.json.encode(registration))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    time = Time()
    service = Service(
        Registry(), DpRanks(), epoch=7, version="1", address=("127.0.0.1", 8998), clock=time
    )
    site = await run_site(service.app(), "127.0.0.1", 0)
    async with aiohttp.ClientSession() as http:
        yield Desk(service, site.url, http, time)
    await site.close()


async def test_a_rank_registers_and_is_found(desk: Desk) -> None:
    assert await desk.put(P0) == (200, "OK")
    status, route = await desk.ask("GET", "/route", params=RANK0)
    assert (status, route) == (
        200,
        {"rank_ip": "127.0.0.1", "rank_port": 7000, "instance": "p0", "epoch": 100},
    )


async def test_the_four_sentinels_answer_the_sizes_under_sglangs_names(desk: Desk) -> None:
    await desk.put(P0)
    status, sizes = await desk.ask("GET", "/route", params=SENTINEL)
    assert status == 200
    assert sizes == {
        "attn_tp_size": 1,
        "attn_cp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "page_size": 16,
        "kv_cache_dtype": "fp32",
        "follow_bootstrap_room": True,
        "instance": "p0",
        "epoch": 100,
    }


async def test_topology_is_the_plain_way(desk: Desk) -> None:
    await desk.put(P0)
    status, topology = await desk.ask("GET", "/topology", params={"instance": "p0"})
    assert status == 200
    assert topology["fingerprint"]["page_size"] == 16
    assert topology["shape"]["attn_tp_size"] == 1


@pytest.mark.parametrize("missing", list(SENTINEL))
async def test_a_missing_parameter_is_named(desk: Desk, missing: str) -> None:
    params = {name: value for name, value in RANK0.items() if name != missing}
    status, answer = await desk.ask("GET", "/route", params=params)
    assert status == 400
    assert missing in answer["error"]["message"]


async def test_a_parameter_that_is_no_integer_is_named(desk: Desk) -> None:
    status, answer = await desk.ask("GET", "/route", params={**RANK0, "target_tp_rank": "x"})
    assert (status, "target_tp_rank='x'" in answer["error"]["message"]) == (400, True)


async def test_before_anybody_registered_a_lookup_may_come_again(desk: Desk) -> None:
    status, answer = await desk.ask("GET", "/route", params=SENTINEL)
    assert (status, answer["error"]["retry"]) == (503, True)


async def test_ranks_that_are_not_all_in_are_503_and_unknown_ones_404(desk: Desk) -> None:
    await desk.put(msgspec.structs.replace(P0, shape=Shape(attn_tp_size=2)))
    assert (await desk.ask("GET", "/route", params=RANK0))[0] == 503
    await desk.put(msgspec.structs.replace(P0, shape=Shape(attn_tp_size=2), attn_tp_rank=1))
    assert (await desk.ask("GET", "/route", params=RANK0))[0] == 200
    assert (await desk.ask("GET", "/route", params={**RANK0, "target_pp_rank": 1}))[0] == 404
    assert (await desk.ask("GET", "/route", params={**RANK0, "instance": "p9"}))[0] == 404


async def test_two_prefills_must_be_told_apart(desk: Desk) -> None:
    await desk.put(P0)
    await desk.put(msgspec.structs.replace(P0, instance="p1", rank_port=7001))
    status, answer = await desk.ask("GET", "/route", params=RANK0)
    assert (status, "p0, p1" in answer["error"]["message"]) == (409, True)
    status, route = await desk.ask("GET", "/route", params={**RANK0, "instance": "p1"})
    assert (status, route["rank_port"]) == (200, 7001)


async def test_a_conflict_shows_both_values(desk: Desk) -> None:
    await desk.put(P0)
    status, answer = await desk.put(msgspec.structs.replace(P0, epoch=99))
    assert status == 409
    assert "epoch registered 100, yours 99" in answer["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"nonsense",
        msgspec.json.encode(P0)[:-1] + b',"more":1}',
        msgspec.json.encode(P0).replace(b'"epoch":100', b'"epoch":-1'),
        msgspec.json.encode(P0).replace(b'"p0"', b'"../p0"'),
        msgspec.json.encode(P0).replace(b'"rank_port":7000', b'"rank_port":"7000"'),
        msgspec.json.encode(P0).replace(b'"attn_tp_rank":0', b'"attn_tp_rank":1'),
    ],
)
async def test_a_malformed_registration_is_refused_and_changes_nothing(
    desk: Desk, body: bytes
) -> None:
    status, answer = await desk.ask("PUT", "/route", data=body)
    assert (status, bool(answer["error"]["message"])) == (400, True)
    assert desk.service.registry.lives == {}


async def test_a_body_beyond_the_limit_is_refused(desk: Desk) -> None:
    assert (await desk.ask("PUT", "/route", data=io.BytesIO(b" " * (2 << 20))))[0] == 413


async def test_deleting_needs_the_right_life(desk: Desk) -> None:
    await desk.put(P0)
    gone = {"instance": "p0", "epoch": 99}
    assert (await desk.ask("DELETE", "/route", json=gone))[0] == 409
    assert (await desk.ask("DELETE", "/route", json={**gone, "epoch": 100}))[0] == 200
    assert (await desk.ask("DELETE", "/route", json={**gone, "epoch": 100}))[0] == 404


async def test_the_list_has_this_life_of_the_book_and_lost_instances(desk: Desk) -> None:
    await desk.put(P0)
    desk.time.now_s = 11.0
    _, (own, p0) = await desk.ask("GET", "/instances")
    assert (own["instance"], own["role"], own["epoch"]) == ("bootstrap", "bootstrap", 7)
    assert (p0["instance"], p0["state"]) == ("p0", "lost")


async def test_a_restarted_book_heals_by_renewals(desk: Desk) -> None:
    await desk.put(P0)
    desk.service.registry = Registry()
    assert (await desk.ask("GET", "/topology", params={"instance": "p0"}))[0] == 404
    await desk.put(P0)
    assert (await desk.ask("GET", "/topology", params={"instance": "p0"}))[0] == 200


async def test_data_parallel_ranks_are_remembered_for_a_time(desk: Desk) -> None:
    for room, rank in ((5, 1), (6, 2)):
        body = {"bootstrap_room": room, "dp_rank": rank}
        assert await desk.ask("POST", "/register_dp_rank", json=body) == (200, "OK")
    query = {"bootstrap_rooms": [5, 6, 7]}
    assert await desk.ask("POST", "/query_dp_ranks", json=query) == (200, {"5": 1, "6": 2})
    desk.time.now_s = 121.0
    desk.service.tick()
    assert await desk.ask("POST", "/query_dp_ranks", json=query) == (200, {})


@pytest.mark.parametrize(
    "body", [{}, {"bootstrap_room": 0, "dp_rank": 0}, {"bootstrap_room": 1, "dp_rank": -1}]
)
async def test_a_malformed_data_parallel_rank_is_refused(
    desk: Desk, body: dict[str, object]
) -> None:
    assert (await desk.ask("POST", "/register_dp_rank", json=body))[0] == 400


async def test_health_and_metrics_answer(desk: Desk) -> None:
    await desk.put(P0)
    await desk.put(msgspec.structs.replace(P0, epoch=99))
    assert await desk.ask("GET", "/health") == (200, "OK")
    _, text = await desk.ask("GET", "/metrics")
    assert 'pd_bootstrap_instances{role="prefill",state="ready"} 1.0' in text
    assert 'pd_bootstrap_registrations_total{change="refused"} 1.0' in text


async def test_other_methods_are_not_allowed(desk: Desk) -> None:
    assert (await desk.ask("POST", "/route"))[0] == 405


async def test_with_a_key_only_health_and_metrics_need_no_token() -> None:
    key = ClusterKey(b"k" * 32, "here")
    service = Service(
        Registry(),
        DpRanks(),
        epoch=1,
        version="1",
        address=("127.0.0.1", 1),
        guard=guard(key, Role.BOOTSTRAP),
    )
    site = await run_site(service.app(), "127.0.0.1", 0, stop_s=0.1)
    async with aiohttp.ClientSession(site.url) as http:
        for route in service.app().router.routes():
            assert route.resource is not None
            path = route.resource.canonical
            async with http.request(route.method, path) as response:
                is_closed = response.status == 401
            assert is_closed == (path not in ("/health", "/metrics")), path
        async with http.get("/instances", headers=bearer(key, Role.BOOTSTRAP)) as response:
            assert response.status == 200
        async with http.put("/route", data=b"{}") as response:
            assert response.status == 401
    assert service.registry.lives == {}
    await site.close()


async def test_events_tell_who_came_drained_and_was_lost(desk: Desk) -> None:
    await desk.put(P0)
    await desk.put(P0)  # a renewed lease is no event
    await desk.put(msgspec.structs.replace(P0, state=State.DRAINING))
    await desk.put(msgspec.structs.replace(P0, epoch=99))
    desk.time.now_s = 11.0
    desk.service.tick()
    status, answer = await desk.ask("GET", "/events")
    assert status == 200
    told = [(event["event"], event["instance"]) for event in answer["events"]]
    assert told == [(what, "p0") for what in ("new", "draining", "refused", "lost")]
    since = answer["events"][0]["at_s"]
    assert answer["now_s"] >= since
    _, later = await desk.ask("GET", "/events", params={"since": since})
    assert [event["event"] for event in later["events"]] == ["draining", "refused", "lost"]


async def test_a_time_that_is_none_is_refused(desk: Desk) -> None:
    status, answer = await desk.ask("GET", "/events", params={"since": "yesterday"})
    assert (status, "since='yesterday'" in answer["error"]["message"]) == (400, True)

"""Health, status, rooms, drain and what routers ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from daemons.front.control_api import rooms_meant
from daemons.front.ranks import Silent
from daemons.protocol.causes import Cause
from daemons.protocol.generate import Cancel, Drain, Submit
from daemons.protocol.ids import room_hex
from daemons.protocol.topology import State
from daemons.runtime.http import Refusal
from tests.support.front_bench import Bench, front_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


async def get(bench: Bench, path: str) -> tuple[int, Any]:
    async with bench.http.get(path) as answer:
        return answer.status, await answer.json()


async def answered(bench: Bench, asking: Awaitable[Any]) -> Any:
    """Let the rank answer questions until the request is done."""
    task = asyncio.ensure_future(asking)
    hearing = asyncio.create_task(bench.rank.hear(Submit))  # answers whatever comes before
    await asyncio.wait({task, hearing}, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    await asyncio.wait({hearing})
    return await task


async def test_a_ready_instance_is_healthy_without_asking_anybody(bench: Bench) -> None:
    assert await get(bench, "/health") == (200, {"status": "ok"})


async def test_an_instance_that_takes_no_requests_is_not_healthy(bench: Bench) -> None:
    bench.desk.life.enter(State.DRAINING, "an operator drains it")
    status, answer = await get(bench, "/health")
    assert status == 503
    assert "drains" in answer["error"]["message"]


async def test_an_instance_whose_ranks_are_silent_is_not_healthy(bench: Bench) -> None:
    bench.pulse.patience_s = -1.0
    status, answer = await get(bench, "/health")
    assert status == 503
    assert "silent" in answer["error"]["message"]


async def test_health_generate_asks_the_ranks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await answered(bench, get(bench, "/health_generate")) == (200, {"status": "ok"})

    async def silent(*_: object) -> list[dict[str, object]]:
        raise Silent("no answer from rank 0 within 2 s")

    monkeypatch.setattr(bench.ranks, "ask", silent)
    status, answer = await get(bench, "/health_generate")
    assert status == 503
    assert "no answer from rank 0" in answer["error"]["message"]


async def test_status_joins_what_rank_and_front_know(bench: Bench) -> None:
    bench.desk.meter.first_token(0.25)
    status, answer = await answered(bench, get(bench, "/status"))
    assert status == 200
    assert (answer["instance"], answer["state"], answer["model"]) == ("d0", "ready", "tiny")
    assert (answer["version"], answer["config_hash"]) == ("0.0.1", "abc")
    assert answer["pages"] == {"free": 60, "request": 4}
    assert answer["ttft_p99_s"] == 0.25


async def test_a_starting_instance_has_a_status_but_no_rooms(tmp_path: Path) -> None:
    async with front_bench(tmp_path, ready=False) as bench:
        status, answer = await get(bench, "/status")
        assert (status, answer["state"], answer["pages"]) == (200, "starting", {})
        for path in ("/rooms", "/rooms/7", "/health", "/health_generate"):
            status, answer = await get(bench, path)
            assert (status, answer["error"]["cause"]) == (503, "instance.starting")


async def test_metrics_join_what_rank_and_front_know(bench: Bench) -> None:
    async def read() -> str:
        async with bench.http.get("/metrics") as answer:
            assert answer.status == 200
            assert answer.content_type == "text/plain"
            return await answer.text()

    text = await answered(bench, read())
    assert 'pd_pages{owner="free"} 60.0' in text
    assert "pd_ttft_seconds_bucket" in text


async def test_metrics_without_ranks_still_tell_what_the_front_knows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> list[dict[str, object]]:
        raise Silent("no answer")

    monkeypatch.setattr(bench.ranks, "ask", silent)
    async with bench.http.get("/metrics") as answer:
        text = await answer.text()
    assert "pd_ttft_seconds_count" in text
    assert "pd_pages" not in text


async def test_rooms_are_listed(bench: Bench) -> None:
    status, answer = await answered(bench, get(bench, "/rooms"))
    assert status == 200
    assert [(row["room"], row["stage"]) for row in answer["rooms"]] == [(7, "running")]


@pytest.mark.parametrize("word", ["7", "0x7", room_hex(7)])
async def test_a_rooms_stories_are_found_by_number_or_by_its_printed_form(
    bench: Bench, word: str
) -> None:
    status, answer = await answered(bench, get(bench, f"/rooms/{word}"))
    assert status == 200
    assert answer["stories"][0]["lines"][0]["entered"] == "prealloc"


async def test_an_unknown_room_is_404_and_no_room_is_400(bench: Bench) -> None:
    status, _ = await answered(bench, get(bench, "/rooms/8"))
    assert status == 404
    status, _ = await get(bench, "/rooms/zz")
    assert status == 400


def test_a_word_that_may_mean_two_rooms_means_the_printed_one_first() -> None:
    assert rooms_meant("12345678901234") == [0x12345678901234, 12345678901234]
    assert rooms_meant("10") == [10, 16]
    assert rooms_meant("7f3a") == [0x7F3A]
    for wrong in ("0", "-1", "x", "9" * 30):
        with pytest.raises(Refusal):
            rooms_meant(wrong)


async def test_routers_learn_what_they_ask_for(bench: Bench) -> None:
    for path in ("/get_model_info", "/model_info"):
        _, answer = await get(bench, path)
        assert (answer["served_model_name"], answer["is_generation"]) == ("tiny", True)
    for path in ("/get_server_info", "/server_info"):
        _, answer = await get(bench, path)
        assert answer["disaggregation_mode"] == "decode"
        assert (answer["tp_size"], answer["page_size"]) == (1, 16)
    _, answer = await get(bench, "/v1/models")
    assert answer["data"][0]["owned_by"] == "sglang"
    assert answer["data"][0]["max_model_len"] == 400
    async with bench.http.get("/version") as answer:
        assert answer.status == 404


async def test_a_drained_instance_tells_its_ranks_and_may_be_taken_back(bench: Bench) -> None:
    async def drain(body: object) -> tuple[int, Any]:
        async with bench.http.post("/drain", json=body) as answer:
            return answer.status, await answer.json()

    assert await drain({"on": True}) == (200, {"state": "draining"})
    assert await bench.rank.hear(Drain) == Drain(on=True)
    assert bench.desk.life.changed.is_set()
    assert await drain({"on": True}) == (200, {"state": "draining"})
    assert await drain({"on": False}) == (200, {"state": "ready"})
    assert await bench.rank.hear(Drain) == Drain(on=False)
    assert (await drain({"on": "yes"}))[0] == 400
    assert (await drain({}))[0] == 400
    bench.desk.life.stop("it was told to stop")
    assert (await drain({"on": False}))[0] == 409


async def test_a_forced_drain_ends_the_open_rooms_with_the_reason(bench: Bench) -> None:
    asked = asyncio.create_task(bench.http.post("/generate", json=bench.body(text="hi")))
    submit = await bench.rank.hear(Submit)
    async with bench.http.post("/drain", json={"on": True, "force": True}) as answer:
        assert answer.status == 200
    async with await asked as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["cause"] == "instance.draining"
    cancel = await bench.rank.hear(Cancel)
    assert (cancel.room, cancel.failure.cause) == (submit.room, Cause.INSTANCE_DRAINING)


async def test_an_abort_needs_a_name_and_minds_no_unknown_one(bench: Bench) -> None:
    async def abort(body: object) -> tuple[int, Any]:
        async with bench.http.post("/abort_request", json=body) as answer:
            return answer.status, await answer.json()

    assert (await abort({}))[0] == 400
    assert await abort({"rid": "nobody"}) == (200, {"aborted": 0})
    asked = asyncio.create_task(bench.http.post("/generate", json=bench.body(text="hi")))
    await bench.rank.hear(Submit)
    assert await abort({"abort_all": True}) == (200, {"aborted": 1})
    async with await asked as answer:
        assert answer.status == 499


async def test_an_unknown_path_and_a_wrong_method_have_the_shape_of_every_error(
    bench: Bench,
) -> None:
    for path, status in (("/nothing", 404), ("/generate", 405)):
        got, answer = await get(bench, path)
        assert got == status
        assert answer["error"]["code"] == status

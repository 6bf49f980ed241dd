"""Names that come with a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from daemons.front.tracing import TRACE_HEADER, trace_id
from daemons.protocol.generate import FinishReason, Submit
from tests.support.front_bench import Bench, front_bench

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (PARENT, TRACE),
        (f"01{PARENT[2:]}-more", TRACE),
        (f"ff{PARENT[2:]}", ""),
        (PARENT.upper(), ""),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_a_trace_is_known_by_its_id(header: str, trace: str) -> None:
    assert trace_id(make_mocked_request("POST", "/", headers={TRACE_HEADER: header})) == trace


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_names_reach_the_rank_and_come_back(
    bench: Bench,
    path: str,
    body: dict[str, object],
    stream: bool,  # noqa: FBT001
) -> None:
    headers = {"X-Request-ID": "me", TRACE_HEADER: PARENT}

    async def ask() -> tuple[str, str]:
        asked = bench.body(**body, stream=stream)
        async with bench.http.post(path, json=asked, headers=headers) as answer:
            await answer.read()
            return answer.headers["X-Request-ID"], answer.headers[TRACE_HEADER]

    asking = asyncio.create_task(ask())
    submit = await bench.rank.hear(Submit)
    assert submit.names == {"rid": "me", "trace": TRACE}
    await bench.rank.output(submit, b"a", FinishReason.LENGTH)
    assert await asking == ("me", PARENT)


async def test_a_refused_request_gets_its_names_back_too(bench: Bench) -> None:
    headers = {"X-Request-ID": "me", TRACE_HEADER: PARENT}
    asked = bench.body(text="hi", sampling_params={"top_k": 0})
    async with bench.http.post("/generate", json=asked, headers=headers) as answer:
        assert answer.status == 400
        assert answer.headers["X-Request-ID"] == "me"
        assert answer.headers[TRACE_HEADER] == PARENT

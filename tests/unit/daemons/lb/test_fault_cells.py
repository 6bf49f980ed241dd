"""Every fault of one leg: what the client gets, when the other leg ends, and whether it is retried.

The table of all cells is printed at the end (``-s``). Workers are HTTP servers that fail on order;
in cells with another one there is a second worker of the role, which is well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from daemons.lb import dispatch, serving

from .conftest import (
    DEADLINE_S,
    Balancer,
    MakeBalancer,
    MakeWorker,
    Reply,
    abort,
    breaks,
    explained,
    happens,
    idle,
    waits,
    whole,
)

OTHER_ENDS_S = 2.0
STALL_S = 0.4  # of a request whose leg stands still: nobody else ends it
GOOD = {"text": "ab", "meta_info": {"finish_reason": {"type": "length"}}}
FIRST = {"text": "a", "meta_info": {"finish_reason": None}}
ROWS: list[str] = []
COLUMNS = "{:8}{:24}{:8}{:8}{:>6}  {:6}{:26}{}"
HEAD = COLUMNS.format("leg", "fault", "way", "other", "status", "tries", "end", "twin ends")


@dataclass(frozen=True, slots=True)
class Fault:
    """How a leg fails, and what then holds."""

    name: str
    reply: Reply | None  # None: the connection is refused
    status: int  # that a client sees without another worker
    cause: str
    retried: bool = False  # where the role has another worker, the request is served
    told_first: bool = False  # the leg's first event went to the client


async def cut_after_first(request: web.Request) -> web.StreamResponse:
    """Answer the head and one event (or a part of the body), then cut the connection."""
    if request.method == "GET":  # its health, after the cut
        return web.Response()
    wants_stream = json.loads(await request.read()).get("stream")
    response = web.StreamResponse()
    if wants_stream:
        response.content_type = "text/event-stream"
    else:
        response.content_type = "application/json"
        response.content_length = 1000
    await response.prepare(request)
    first = b"data: " + json.dumps(FIRST).encode() + b"\n\n" if wants_stream else b'{"te'
    await response.write(first)
    await asyncio.sleep(0.05)  # so that it is read before the cut is
    abort(request)
    await asyncio.Event().wait()
    raise AssertionError


FAULTS = (
    Fault("refused", None, 502, "lb.worker_gone", retried=True),
    Fault("reset before head", breaks(), 502, "lb.worker_gone", retried=True),
    Fault(
        "4xx",
        whole({"error": {"message": "no", "cause": "request.invalid"}}, 400),
        400,
        "request.invalid",
    ),
    Fault("429", whole({"error": {"message": "no"}}, 429), 429, "request.invalid"),
    Fault("5xx, no cause", whole({"error": {"message": "no"}}, 500), 500, "internal.error"),
    Fault("5xx, engine failed", explained("engine.failed", 500, peer=""), 500, "engine.failed"),
    Fault("5xx, peer died", explained("peer.died", 502, peer="x"), 502, "peer.died", retried=True),
    Fault("stall", waits(), 504, "lb.timeout"),
    Fault(
        "reset after first chunk",
        cut_after_first,
        502,
        "lb.worker_gone",
        retried=True,
        told_first=True,
    ),
)
LEGS = ("prefill", "decode")


@dataclass(slots=True)
class Seen:
    """What a client got."""

    status: int
    error: dict[str, Any] | None
    done: bool
    events: int
    attempt: str


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    print("\n".join(["", HEAD, *ROWS]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PAUSE_S", 0.01)
    monkeypatch.setattr(serving, "GRACE_S", 0.0)
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.2)


async def ask(lb: Balancer, total_s: float, *, stream: bool) -> Seen:
    how = {"headers": {"X-Request-Timeout": str(total_s)}}
    async with lb.post("/generate", {"text": "a", "stream": stream}, **how) as response:
        raw = await response.read()
        attempt = response.headers.get("X-PD-Attempt", "1")
        if response.content_type == "text/event-stream":
            said = [one.removeprefix(b"data: ") for one in raw.split(b"\n\n") if one]
            last = json.loads(said[-1]) if said[-1] != b"[DONE]" else {}
            done = said[-1] == b"[DONE]"
            return Seen(response.status, last.get("error"), done, len(said), attempt)
        body = json.loads(raw)
        return Seen(response.status, body.get("error"), "error" not in body, 0, attempt)


async def good(request: web.Request) -> web.StreamResponse:
    """Answer as a worker that is well."""
    if not json.loads(await request.read()).get("stream"):
        return web.json_response(GOOD)
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    await response.prepare(request)
    for one in (json.dumps(FIRST), json.dumps(GOOD), "[DONE]"):
        await response.write(f"data: {one}\n\n".encode())
    return response


@pytest.mark.parametrize("others", [False, True], ids=["alone", "other"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
@pytest.mark.parametrize("leg", LEGS)
async def test_a_fault_of_one_leg(
    balancer: MakeBalancer,
    fake: MakeWorker,
    leg: str,
    fault: Fault,
    *,
    stream: bool,
    others: bool,
) -> None:
    bad = await fake(leg[0] + "0", fault.reply or waits())
    stands = asyncio.Event()
    reply = standing(stands, first_only=others)
    twin = await fake("d9" if leg == "prefill" else "p9", reply)
    workers = [bad, twin]
    if others:
        workers.append(await fake(leg[0] + "1", good))
    lb = await balancer(*workers, retry_wait_s=0.05, attempts=3)
    if fault.reply is None:
        await bad.stop()
    asking = asyncio.create_task(
        ask(lb, STALL_S if fault.name == "stall" else DEADLINE_S, stream=stream)
    )
    seen = await asyncio.wait_for(asking, DEADLINE_S)
    clock = asyncio.get_running_loop().time
    ended_s = clock()
    if stands.is_set():
        await happens(twin.left)  # the leg that waited is ended by us
    other_s = clock() - ended_s
    assert other_s < OTHER_ENDS_S
    check(fault, seen, stream=stream, others=others)
    twin_ends = f"within {other_s:.2f} s" if stands.is_set() else "was never asked"
    cause = seen.error.get("cause", "as the worker said") if seen.error else ""
    end = cause or ("[DONE]" if stream else "whole")
    way, other = "stream" if stream else "whole", "yes" if others else "no"
    ROWS.append(
        COLUMNS.format(leg, fault.name, way, other, seen.status, seen.attempt, end, twin_ends)
    )
    await idle(lb)


def standing(stands: asyncio.Event, *, first_only: bool) -> Reply:
    """Answer nothing, or nothing to the first try and well to all others."""

    async def reply(request: web.Request) -> web.StreamResponse:
        is_first = json.loads(await request.read()).get("bootstrap_attempt", 1) == 1
        if is_first or not first_only:
            stands.set()
            await asyncio.Event().wait()
        return await good(request)

    return reply


def check(fault: Fault, seen: Seen, *, stream: bool, others: bool) -> None:
    told = fault.told_first and stream
    if others and fault.retried and not told:
        assert (seen.status, seen.done, seen.error) == (200, True, None)
        assert seen.attempt == "2"
        return
    assert not seen.done, "nothing fails open"
    assert seen.error is not None
    if told:  # the head is out, with prefill's first token or decode's
        assert (seen.status, seen.events) == (200, 2)
        assert seen.error["cause"] == fault.cause
        return
    assert seen.status == fault.status
    if not fault.retried:
        assert seen.attempt == "1"
    assert seen.error.get("cause", fault.cause) == fault.cause

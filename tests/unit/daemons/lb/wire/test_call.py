from __future__ import annotations

import asyncio

import pytest

from daemons.lb.dispatch import ClientGone
from daemons.lb.wire.call import Call, Flow
from daemons.lb.wire.head import Head


def call(out: list[bytes], *, http10: bool = False, keeps: bool = True) -> Call:
    head = Head("POST", "/generate", {"a": "b"}, keeps, http10, 0)
    return Call(head, b"", out.append, Flow(), extra={"X-Extra": "1"})


async def test_a_whole_answer_has_its_length() -> None:
    out: list[bytes] = []
    one = call(out)
    await one.answer(404, {"X": "y"}, b"gone")
    assert b"".join(out) == (
        b"HTTP/1.1 404 Not Found\r\nX: y\r\nContent-Length: 4\r\nX-Extra: 1\r\n\r\ngone"
    )
    assert (one.status, one.has_ended) == (404, True)


async def test_a_status_without_a_phrase_is_one_too() -> None:
    out: list[bytes] = []
    await call(out).answer(499, {}, b"")
    assert out[0].startswith(b"HTTP/1.1 499 \r\n")


async def test_a_stream_goes_out_in_chunks() -> None:
    out: list[bytes] = []
    one = call(out, keeps=False)
    await one.begin({"X": "y"})
    assert not one.has_ended
    await one.send(b"data: 0123456789abcdef\n\n")
    one.end()
    head, _, body = b"".join(out).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"Connection: close" in head
    assert body == b"18\r\ndata: 0123456789abcdef\n\n\r\n0\r\n\r\n"
    assert one.has_ended


async def test_a_stream_of_http_1_0_ends_with_its_connection() -> None:
    out: list[bytes] = []
    one = call(out, http10=True)
    await one.begin({})
    await one.send(b"data: x\n\n")
    one.end()
    head, _, body = b"".join(out).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"Connection: close" in head
    assert body == b"data: x\n\n"
    assert not one.head.keep_alive


async def test_who_sends_waits_for_a_slow_reader_and_learns_that_it_left() -> None:
    out: list[bytes] = []
    one = call(out)
    await one.begin({})
    one.flow.is_paused = True
    sending = asyncio.create_task(one.send(b"x"))
    await asyncio.sleep(0)
    assert not sending.done()
    one.flow.resume()
    await sending
    one.flow.is_paused = True
    sending = asyncio.create_task(one.send(b"y"))
    await asyncio.sleep(0)
    one.flow.is_gone = True
    one.flow.resume()
    with pytest.raises(ClientGone):
        await sending
    with pytest.raises(ClientGone):
        await one.answer(200, {}, b"")

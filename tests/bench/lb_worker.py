"""The cheapest worker that a balancer takes for one: answers from constants, as raw as it goes.

It speaks the part of the workers' contract that balancers look at: health, infos, ``/generate`` as
a whole or as events. Prefill streams one event, decode ``--events``, ``--gap`` seconds apart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import Any

TEXT = b'{"text":" and so on","output_ids":[5],"meta_info":{"id":"r","finish_reason":null}}'
EVENT = b"data: " + TEXT + b"\n\n"
INFO = b'{"model_path":"m","served_model_name":"m","is_generation":true,"disaggregation_mode":"%b"}'


def answer(body: bytes) -> bytes:
    """Return a whole answer."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    ) + body


def chunk(data: bytes) -> bytes:
    """Return a part of a stream."""
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = answer(TEXT)
BEGIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = BEGIN + chunk(EVENT)
NEXT = chunk(EVENT)
LAST = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Worker(asyncio.Protocol):
    """One connection."""

    def __init__(self, role: bytes, events: int, gap_s: float) -> None:
        self.role, self.events, self.gap_s = role, events, gap_s
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        while buffer:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            if buffer.startswith(b"PRI "):  # somebody looks for HTTP/2
                self.transport.close()
                return
            head = buffer[:end].lower()
            at = head.find(b"content-length: ")
            size = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(buffer) < end + 4 + size:
                break
            self.serve(head, buffer[end + 4 : end + 4 + size])
            buffer = buffer[end + 4 + size :]
        self.buffer = buffer

    def serve(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get "):
            self.transport.write(answer(INFO % self.role))
        elif b'"stream":true' not in body and b'"stream": true' not in body:
            self.transport.write(WHOLE)
        else:
            self.transport.write(FIRST)
            self.more(self.events - 1)

    def more(self, left: int) -> None:
        if left <= 0:
            self.transport.write(LAST)
        else:
            asyncio.get_running_loop().call_later(self.gap_s, self.one, left)

    def one(self, left: int) -> None:
        if not self.transport.is_closing():
            self.transport.write(NEXT)
            self.more(left - 1)


async def listen(port: int, role: str, events: int, gap_s: float) -> None:
    """Serve for ever."""
    loop = asyncio.get_running_loop()
    events = 1 if role == "prefill" else events
    server = await loop.create_server(
        lambda: Worker(role.encode(), events, gap_s), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--events", type=int, default=8)
    parser.add_argument("--gap", type=float, default=0.1)
    flags = parser.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop  # only makes the bench's own side cheaper

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(listen(flags.port, flags.role, flags.events, flags.gap))

"""Clients that keep a number of requests open against one address, and tell what they saw.

Closed loop: each connection asks again when its answer has ended. Beginnings are spread over
``--spread`` seconds. Prints JSON: answers, failures, seconds, and latencies of each in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httptools

PROMPT = "Once upon a time there was a scheduler that never slept, and a balancer beside it. " * 2
SAMPLING = '"sampling_params":{"max_new_tokens":16,"temperature":0}'


@dataclass
class Run:
    """What is asked for, and what came."""

    request: bytes
    ends_s: float = 0.0
    warm_s: float = 0.0  # from then on it counts
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)  # between two parts of a stream
    failures: int = 0
    open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.run.open += 1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.first_s: float | None = None
        self.last_s = self.asked_s = time.perf_counter()
        self.transport.write(self.run.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, _: bytes) -> None:
        now_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = now_s
            if self.run.warm_s <= self.asked_s and now_s < self.run.ends_s:
                self.run.first_s.append(now_s - self.asked_s)
        elif self.last_s >= self.run.warm_s:
            self.run.gap_s.append(now_s - self.last_s)
        self.last_s = now_s

    def on_message_complete(self) -> None:
        run, now_s = self.run, time.perf_counter()
        if self.parser.get_status_code() != 200 or self.first_s is None:
            run.failures += 1
        elif self.asked_s >= run.warm_s and now_s < run.ends_s:
            run.whole_s.append(now_s - self.asked_s)
        if now_s < run.ends_s:
            asyncio.get_running_loop().call_soon(self.ask)
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.run.open -= 1
        if time.perf_counter() < self.run.ends_s:
            self.run.failures += 1
        if not self.run.open:
            self.run.idle.set()


def request(port: int, *, stream: bool) -> bytes:
    """Return the bytes of one request."""
    said = f'"stream":{"true" if stream else "false"}'
    body = f'{{"text":{json.dumps(PROMPT)},{SAMPLING},{said}}}'.encode()
    return (
        f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: bench\r\n"
        f"Accept: */*\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def load(flags: argparse.Namespace) -> dict[str, Any]:
    """Run to the end."""
    loop = asyncio.get_running_loop()
    run = Run(request(flags.port, stream=flags.stream))
    run.warm_s = time.perf_counter() + flags.warm + flags.spread
    run.ends_s = run.warm_s + flags.seconds
    for _ in range(flags.clients):
        await loop.create_connection(lambda: Client(run), "127.0.0.1", flags.port)
        if flags.spread:
            await asyncio.sleep(flags.spread / flags.clients)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(flags.warm + flags.spread + flags.seconds + 20):
            await run.idle.wait()
    return {
        "seconds": flags.seconds, "failures": run.failures + run.open,
        "first_s": run.first_s, "whole_s": run.whole_s, "gap_s": run.gap_s,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--stream", action="store_true")
    for name in ("--seconds", "--warm", "--spread"):
        parser.add_argument(name, type=float, default=0.0)
    asked = parser.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop  # only makes the bench's own side cheaper

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    json.dump(asyncio.run(load(asked)), sys.stdout)

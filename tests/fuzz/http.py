"""Requests to every endpoint, valid ones that were spoiled, over plain sockets."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz.mutate import INTERESTING, document, raw

ANSWER_S = 0.5
HELD_LIMIT = 10  # connections that are left open in the middle of a request

GENERATE = {
    "input_ids": [5, 6, 7],
    "sampling_params": {"max_new_tokens": 2, "temperature": 0.5, "stop": ["x"], "top_k": 3},
    "stream": True,
    "rid": "f-1",
    "bootstrap_host": "127.0.0.1",
    "bootstrap_port": 8998,
    "bootstrap_room": 77,
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 2,
}
CHAT = {
    "model": "default",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 2,
    "stream": True,
    "stop": ["a"],
    "logprobs": True,
    "top_logprobs": 2,
    "n": 1,
}
REGISTRATION = {
    "instance": "f0",
    "role": "decode",
    "epoch": 7,
    "state": "starting",
    "http_host": "127.0.0.1",
    "http_port": 9,
    "lease_s": 1.0,
    "version": "0",
    "shape": {"attn_tp_size": 1, "attn_cp_size": 1, "attn_dp_size": 1, "pp_size": 1},
    "rank_ip": "127.0.0.1",
    "rank_port": 9,
}
WORKER: list[tuple[str, str, Any]] = [
    ("POST", "/generate", GENERATE),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "echo": False}),
    ("POST", "/abort_request", {"rid": "f-1"}),
    ("GET", "/rooms/00000000000001", None),
    ("GET", "/rooms", None),
    ("GET", "/status", None),
    ("GET", "/metrics", None),
    ("GET", "/health", None),
    ("GET", "/v1/models", None),
]
BOOK: list[tuple[str, str, Any]] = [
    ("PUT", "/route", REGISTRATION),
    ("DELETE", "/route", {"instance": "f0", "epoch": 7, "ranks": [[0, 0, 0, 0]]}),
    (
        "GET",
        "/route?instance=p0&target_tp_rank=0&target_pp_rank=0&prefill_cp_rank=0&prefill_dp_rank=0",
        None,
    ),
    ("GET", "/topology?instance=p0", None),
    ("GET", "/instances", None),
    ("POST", "/register_dp_rank", {"bootstrap_room": 77, "dp_rank": 0}),
    ("POST", "/query_dp_ranks", {"bootstrap_rooms": [77, 78]}),
    ("GET", "/metrics", None),
]


@dataclass(slots=True)
class Caller:
    """Sends one spoiled request after the other to one daemon."""

    name: str
    base: str
    templates: list[tuple[str, str, Any]]
    draw: random.Random
    statuses: Counter[str] = field(default_factory=Counter)
    _held: list[socket.socket] = field(default_factory=list)

    def once(self) -> None:
        """Send one request and read the beginning of its answer."""
        parts = urlsplit(self.base)
        request = self._request()
        try:
            connection = socket.create_connection(
                (parts.hostname or "", parts.port or 0), timeout=ANSWER_S
            )
        except OSError:
            self.statuses["no connection"] += 1
            return
        if self.draw.random() < 0.02:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(request[: len(request) // 2])
            self._hold(connection)
            return
        with connection:
            self.statuses[_answer(connection, request)] += 1

    def close(self) -> None:
        """Let go of what was left open."""
        for connection in self._held:
            connection.close()
        self._held.clear()

    def _hold(self, connection: socket.socket) -> None:
        self._held.append(connection)
        if len(self._held) > HELD_LIMIT:
            self._held.pop(self.draw.randrange(HELD_LIMIT)).close()

    def _request(self) -> bytes:
        method, path, body = self.draw.choice(self.templates)
        kind = self.draw.random()
        if body is not None and kind < 0.6:
            body = document(self.draw, body)
        text = b"" if body is None else json.dumps(body).encode()
        if text and 0.5 < kind < 0.7:
            text = raw(self.draw, text)
        if self.draw.random() < 0.15:
            path = path + self.draw.choice(["?x=1", "/%00", "/../..", "%ff", "&target_tp_rank=x"])
        head = f"{method} {path} HTTP/1.1\r\nHost: f\r\n"
        if self.draw.random() < 0.1:
            head += f"X: {'y' * self.draw.choice([10, 9000, 70_000])}\r\n"
        if self.draw.random() < 0.05:
            head += "Transfer-Encoding: chunked\r\n"
        if self.draw.random() < 0.05:
            head += f"X-Request-Timeout: {self.draw.choice(['-1', 'nan', '1e999', '0', 'x'])}\r\n"
        length = len(text) if self.draw.random() < 0.95 else self.draw.choice([-1, 0, 2**40])
        head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
        request = f"{head}Connection: close\r\n\r\n".encode(errors="replace") + text
        if self.draw.random() < 0.2:
            request = raw(self.draw, request)
        if self.draw.random() < 0.02:
            request = self.draw.choice(INTERESTING) * 50
        return request


def _answer(connection: socket.socket, request: bytes) -> str:
    try:
        connection.sendall(request)
        head = connection.recv(64)
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return "still open"
    except OSError:
        return "cut"
    words = head.split(b" ", 2)
    return words[1].decode(errors="replace") if len(words) > 1 else "closed"

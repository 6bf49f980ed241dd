"""Fake daemons that answer canned HTTP, and what a cluster of them says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

Route = Callable[[bytes], tuple[int, Any]] | tuple[int, Any]


@dataclass
class FakeDaemon:
    """Answers ``routes``; a body that is no bytes goes out as JSON. Remembers what was posted."""

    routes: dict[str, Route] = field(default_factory=dict)
    posted: list[tuple[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    port: int = 0
    server: ThreadingHTTPServer | None = None

    def start(self) -> FakeDaemon:
        daemon = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                daemon.posted.append((self.path, json.loads(body)))
                self._answer(body)

            def _answer(self, body: bytes) -> None:
                route = daemon.routes.get(self.path)
                missing = (404, {"error": {"message": f"no {self.path}"}})
                status, said = (
                    missing if route is None else route(body) if callable(route) else route
                )
                raw = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                for name, value in daemon.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@dataclass
class Fleet:
    """Fake bootstrap, p0, d0 and lb, and the cluster file that names them."""

    config: Path
    bootstrap: FakeDaemon
    p0: FakeDaemon
    d0: FakeDaemon
    lb: FakeDaemon

    def instances(self, **states: str) -> list[dict[str, Any]]:
        return [
            instance(name, role, daemon.port, states.get(name, "ready"))
            for name, role, daemon in (
                ("p0", "prefill", self.p0),
                ("d0", "decode", self.d0),
            )
        ]


class Said(NamedTuple):
    """How a run of pdctl ended and what it printed."""

    code: int
    out: str
    err: str


def instance(name: str, role: str, port: int, state: str) -> dict[str, Any]:
    return {
        "instance": name,
        "role": role,
        "epoch": 7,
        "state": state,
        "http_host": "127.0.0.1",
        "http_port": port,
        "version": "0.1.0",
        "ranks": 1,
        "ranks_expected": 1,
        "lease_left_s": 9.0,
    }


def worker_status(name: str, role: str, rooms: dict[str, int], **more: Any) -> dict[str, Any]:
    return {
        "instance": name,
        "role": role,
        "epoch": 7,
        "state": "ready",
        "version": "0.1.0",
        "up_s": 7300.0,
        "model": "tiny",
        "transport": "tcp",
        "rooms": rooms,
        "pages": {"free": 59, "cached": 0, "request": 41, "writer": 0, "quarantined": 0},
        "pages_total": 100,
        "rows": {"free": 128},
        "peers": {},
        "counters": {},
        **more,
    }


PREFILL_ROOMS = {"bootstrap": 2, "waiting": 1, "forward": 1, "inflight": 3}
DECODE_ROOMS = {"prealloc": 1, "transfer": 3, "prebuilt": 0, "running": 28}

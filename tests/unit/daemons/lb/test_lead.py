from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from .conftest import FakeWorker, MakeWorker, events, until

UP_S = 60.0


class Several:
    """A balancer of two processes, and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def hear(self, event: str, times: int = 1) -> dict[str, Any]:
        """Return the line of an event when it was logged so often."""
        assert self.process.stdout is not None
        while sum(line["event"] == event for line in self.lines) < times:
            raw = await asyncio.wait_for(self.process.stdout.readline(), UP_S)
            assert raw, self.lines
            self.lines.append(json.loads(raw))
        return next(line for line in reversed(self.lines) if line["event"] == event)

    def children(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]


@contextlib.asynccontextmanager
async def several(
    folder: Path, p0: FakeWorker, d0: FakeWorker, held: socket.socket | None = None
) -> AsyncIterator[Several]:
    workers = [
        {"instance": w.name, "role": w.role.value, "address": "127.0.0.1", "port": w.port}
        for w in (p0, d0)
    ]
    lb = {"port": 0, "static_workers": workers, "poll_s": 0.1, "drain_s": 20}
    file = folder / "c.json"
    file.write_text(json.dumps({"name": "c", "bootstrap": {"port": 1}, "lb": lb}))
    run = (
        f"from daemons.lb.__main__ import main; main(['--config', {str(file)!r}, '--workers', '2'])"
    )
    if held is not None:  # as systemd does it
        run = (
            f"import os; os.environ |= {{'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}}; {run}"
        )
        run = f"import os; os.dup2({held.fileno()}, 3); {run}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", run, stdout=asyncio.subprocess.PIPE,
        pass_fds=() if held is None else (held.fileno(),), limit=1 << 20,
    )  # fmt: skip
    one = Several(process)
    try:
        yield one
    finally:
        for pid in (*one.children(), process.pid) if process.returncode is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.communicate()


@pytest.mark.parametrize("handed_over", [False, True])
async def test_several_processes_are_one_balancer(
    tmp_path: Path, fake: MakeWorker, http: aiohttp.ClientSession, *, handed_over: bool
) -> None:
    go = asyncio.Event()
    p0 = await fake("p0", events({"n": 1}))
    d0 = await fake("d0", events({"n": 1}, {"n": 2}, between=go))
    held = socket.create_server(("127.0.0.1", 0)) if handed_over else None
    async with several(tmp_path, p0, d0, held) as lb:
        port = (await lb.hear("daemon.ready"))["port"]
        await lb.hear("worker.ready", times=4)
        url, body = f"http://127.0.0.1:{port}", b'{"text":"a","stream":true}'
        streams = [await http.post(url + "/generate", data=body) for _ in range(8)]
        for stream in streams:
            await stream.content.readany()
        async with http.get(url + "/status") as response:
            assert (await response.json())["rooms"]["stream"] == 8
        lb.process.send_signal(signal.SIGHUP)
        await lb.hear("config.reloaded", times=2)
        lb.process.send_signal(signal.SIGTERM)
        await lb.hear("daemon.draining", times=1)
        go.set()
        for stream in streams:
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            stream.release()
        assert await asyncio.wait_for(lb.process.wait(), UP_S) == 0
    if held is not None:
        held.close()


async def test_a_process_that_dies_is_started_again(
    tmp_path: Path, fake: MakeWorker, http: aiohttp.ClientSession
) -> None:
    p0, d0 = await fake("p0", events({"n": 1})), await fake("d0", events({"n": 1}))
    async with several(tmp_path, p0, d0) as lb:
        url = f"http://127.0.0.1:{(await lb.hear('daemon.ready'))['port']}"
        os.kill(lb.children()[0], signal.SIGKILL)
        await lb.hear("process.died")
        await lb.hear("process.ready", times=3)
        await until(lambda: len(lb.children()) == 2)
        async with http.get(url + "/status") as response:
            assert response.status == 200
        lb.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(lb.process.wait(), UP_S) == 0

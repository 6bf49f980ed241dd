from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from daemons.lb.together import feed


async def test_systemd_hears_what_there_is_and_that_the_loop_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "n")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.setblocking(False)
        feeding = asyncio.create_task(feed(lambda: "3 requests"))
        told = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(heard, 1000), 10)
        feeding.cancel()
    assert told.split(b"\n") == [b"WATCHDOG=1", b"STATUS=3 requests"]

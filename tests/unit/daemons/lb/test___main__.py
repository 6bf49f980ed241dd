from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from daemons.bootstrap.dp_ranks import DpRanks
from daemons.bootstrap.registry import Registry
from daemons.bootstrap.service import Service as PhoneBookService
from daemons.lb import __main__ as main_module
from daemons.protocol.topology import Fingerprint, Registration, Role, State
from daemons.runtime.http import run_site

from .conftest import FakeWorker, MakeWorker, events, until

DEADLINE_S = 20.0
FINGERPRINT = Fingerprint("m", "fp32", 16, 2, 2, 8)


def registration(worker: FakeWorker) -> Registration:
    return Registration(
        instance=worker.name,
        role=worker.role,
        epoch=1,
        state=State.READY,
        http_host="127.0.0.1",
        http_port=worker.port,
        lease_s=600.0,
        version="1",
        fingerprint=FINGERPRINT,
        rank_ip="127.0.0.1",
        rank_port=1,
    )


@asynccontextmanager
async def running(config: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start pd-lb; yields the process and the URL that it tells when it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "daemons.lb",
        "--config",
        str(config),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line: dict[str, object] = {}
        while line.get("event") != "daemon.ready":
            line = json.loads(await asyncio.wait_for(process.stdout.readline(), DEADLINE_S))
        yield process, f"http://127.0.0.1:{line['port']}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def answers(http: aiohttp.ClientSession, url: str, status: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with http.get(url) as response:
                if response.status == status:
                    return
            await asyncio.sleep(0.02)


async def test_it_finds_workers_serves_and_drains_on_sigterm(
    tmp_path: Path, fake: MakeWorker, http: aiohttp.ClientSession
) -> None:
    go = asyncio.Event()
    p0 = await fake("p0", events({"text": "a"}))
    d0 = await fake("d0", events({"text": "a"}, {"text": "ab"}, between=go))
    book = PhoneBookService(
        Registry(), DpRanks(), epoch=1, version="1", address=("127.0.0.1", 8998)
    )
    site = await run_site(book.app(), "127.0.0.1", 0)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"name: c\nbootstrap: {{port: {site.port}}}\nlb: {{port: 0, poll_s: 0.1, drain_s: 30}}\n"
    )
    async with running(config) as (process, url):
        await answers(http, url + "/health", 503)
        for worker in (p0, d0):
            book.registry.put(registration(worker), book.clock())
        await answers(http, url + "/health", 200)
        await until(lambda: "lb" in book.registry.lives)
        assert book.registry.lives["lb"].role is Role.LB
        async with http.post(url + "/generate", data=b'{"text":"a","stream":true}') as response:
            await response.content.readany()
            process.send_signal(signal.SIGTERM)
            await answers(http, url + "/health", 503)
            go.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
        assert "lb" not in book.registry.lives
    assert d0.said["bootstrap_port"] == site.port
    await site.close()


@pytest.mark.parametrize(
    ("section", "what"),
    [("{decode_policy: best}", "no policy best"), ("{prot: 1}", "unknown field `prot`")],
)
def test_a_wrong_setting_exits_with_78_and_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, what: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: c\nlb: {section}\n")
    assert main_module.main(["--config", str(config)]) == 78
    told, hint = capsys.readouterr().err.splitlines()
    assert what in told
    assert hint.startswith("hint: ")

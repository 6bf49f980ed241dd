from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import ClusterFile
from daemons.cluster.model import Cluster
from daemons.lb.__main__ import tls_of
from daemons.lb.app import run_lb
from daemons.lb.config import LbConfig
from tests.unit.daemons.lb.conftest import (
    DEADLINE_S,
    FakeWorker,
    MakeBalancer,
    MakeWorker,
    events,
    happens,
    waits,
    whole,
)


async def test_orders_and_all_else_come_by_one_port(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    for _ in range(2):
        async with lb.get("/status") as response:
            assert response.headers["Connection"] == "close"
            assert (await response.json())["instance"] == "lb"
        async with lb.post("/generate", {"text": "a"}) as response:
            assert await response.json() == {"text": "decode"}


async def test_a_site_that_closes_lets_an_answer_end_and_takes_no_more(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    go = asyncio.Event()
    d0 = await fake("d0", waits(go, whole({"text": "late"})))
    lb = await balancer(await fake("p0", whole({})), d0)
    asking = asyncio.create_task(lb.http.post(lb.site.url + "/generate", data=b'{"text":"a"}'))
    await happens(d0.came)
    closing = asyncio.create_task(lb.site.close())
    await asyncio.sleep(0)
    go.set()
    async with await asyncio.wait_for(asking, DEADLINE_S) as response:
        assert json.loads(await response.read()) == {"text": "late"}
        assert response.headers["Connection"] == "close"
    await asyncio.wait_for(closing, DEADLINE_S)
    assert lb.site.doorway.connections == set()


async def test_what_is_not_over_when_a_site_closes_is_cut(
    balancer: MakeBalancer, fake: MakeWorker
) -> None:
    p0, d0 = await fake("p0", waits()), await fake("d0", events({"n": 1}, between=asyncio.Event()))
    lb = await balancer(p0, d0)
    lb.site.stop_s = 0.05
    async with lb.post("/generate", {"text": "a", "stream": True}) as response:
        assert await response.content.readany() == b'data: {"n": 1}\n\n'
        await asyncio.wait_for(lb.site.close(), DEADLINE_S)
        response.close()
    await happens(d0.left)
    await happens(p0.left)


async def test_https_is_spoken_beside_http(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost", "-days", "1",
        "-addext", "subjectAltName=IP:127.0.0.1", stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    file = ClusterFile(tmp_path / "c.yaml", Cluster(name="c"), "")
    config = LbConfig(tls_port=9, tls_cert_file="cert.pem", tls_key_file="key.pem")
    tls = tls_of(file, config, "127.0.0.1")
    assert tls is not None
    lb = await balancer(p0, d0)
    site = await run_lb(lb.service, "127.0.0.1", 0, tls=replace(tls, port=0), stop_s=0.1)
    secure = site.listeners[1].sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cafile=str(cert))
    url = f"https://127.0.0.1:{secure}"
    async with lb.http.post(url + "/generate", data=b'{"text":"a"}', ssl=trust) as response:
        assert await response.json() == {"text": "decode"}
    async with lb.http.get(url + "/status", ssl=trust) as response:
        assert response.status == 200
    async with lb.http.get(site.url + "/status") as response:
        assert response.status == 200
    await site.close()


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    file = ClusterFile(tmp_path / "c.yaml", Cluster(name="c"), "")
    with pytest.raises(OperatorError, match="certificate"):
        tls_of(file, LbConfig(tls_port=9, tls_cert_file="no.pem", tls_key_file="no.pem"), "::1")
    assert tls_of(file, LbConfig(), "::1") is None

"""A cluster without a key, and strangers at all of its ports: bounded, whole, and still right."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zmq

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.codec import encode
from daemons.protocol.handshake import Abort, AbortAnswer, Destination, Fence, Message, Progress
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import Sealer
from daemons.protocol.status import Status
from daemons.runtime.mailbox import zmq_address
from tests.fuzz.__main__ import ENGINE, PROBE, fuzz, inbox, processes
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, post, running

pytestmark = pytest.mark.live

ORPHANS = 100_000
DIGEST = "0123456789abcdef"  # of a prompt that nobody sent
GROWTH_BYTES = 128 << 20
FUZZ_S = 10.0
PATHS = {"bootstrap": "/route", "p0": "/generate", "d0": "/generate", "lb": "/generate"}
STRANGER = PeerId("f0", 5)
GONE = Failure(Cause.CLIENT_CANCELLED, "intake")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("limits")
    with running(folder, str(checkpoint("llama")), engine=ENGINE) as cluster:
        yield cluster


def base(cluster: Cluster, instance: str) -> str:
    return {"lb": cluster.lb, "bootstrap": cluster.book}.get(instance) or cluster.url(instance)


def told(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """PUT or POST bytes as they are."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        method = "PUT" if parts.path == "/route" else "POST"
        connection.request(method, parts.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("instance", PATHS)
def test_a_body_beyond_the_limit_is_413_on_every_daemon(cluster: Cluster, instance: str) -> None:
    limit = 1 << 20 if instance == "bootstrap" else 32 << 20
    url = base(cluster, instance) + PATHS[instance]
    packed = gzip.compress(b" " * (limit + 1), 1)
    for body, headers in (
        (b"", {"Content-Length": str(limit + 1)}),  # believed without reading it
        (packed, {"Content-Encoding": "gzip"}),
    ):
        status, answer = told(url, body, headers)
        assert status == 413, answer
        assert json.loads(answer)["error"]["code"] == 413


@pytest.mark.parametrize("instance", PATHS)
def test_a_head_beyond_the_limit_is_refused_on_every_daemon(
    cluster: Cluster, instance: str
) -> None:
    url = base(cluster, instance) + PATHS[instance]
    assert told(url, b"{}", {"X": "y" * 9000})[0] in (400, 431)
    assert told(url, b"{}", {f"X-{n}": "y" for n in range(200)})[0] in (400, 431)


@pytest.mark.parametrize("instance", ["p0", "d0", "lb"])
def test_too_many_or_too_long_prompts_are_400(cluster: Cluster, instance: str) -> None:
    url = f"{base(cluster, instance)}/generate"
    pair = {"bootstrap_room": 1} if instance != "lb" else {}
    status, answer = post(url, {"input_ids": [[5]] * 257, **pair})
    assert (status, answer["error"]["cause"]) == (400, "request.invalid")
    status, answer = post(url, {"input_ids": [5] * 5000, **pair})
    assert (status, answer["error"]["code"]) == (400, 400)


@pytest.mark.parametrize("instance", ["p0", "d0"])
def test_a_worker_asks_no_phone_book_that_a_client_names(cluster: Cluster, instance: str) -> None:
    url = f"{base(cluster, instance)}/generate"
    for place in ({"bootstrap_host": "203.0.113.9"}, {"bootstrap_port": 9}):
        status, answer = post(url, {"input_ids": [5], "bootstrap_room": 1, **place})
        may_come = instance == "d0" and "bootstrap_port" in place  # a prefill of a host we know
        assert status == (503 if may_come else 400)
        assert "the phone book here is" in answer["error"]["message"]


def test_a_hundred_thousand_orphans_of_each_kind_leave_memory_bounded(cluster: Cluster) -> None:
    said = post(f"{cluster.lb}/generate", PROBE)
    before = processes(cluster)
    lives = {name: PeerId(name, row["epoch"]) for name, row in cluster.instances().items()}
    sent = 0
    for sender in (STRANGER, lives["d0"]):
        epoch = lives["p0"].epoch
        flood(cluster, lives["p0"], [
            Destination(sender, epoch, room, 1, (0, 1), 0, 20, DIGEST)
            for room in range(1, ORPHANS + 1)
        ])  # fmt: skip
        flood(cluster, lives["p0"], [
            Abort(sender, epoch, ORPHANS + room, 1, GONE) for room in range(1, ORPHANS + 1)
        ])  # fmt: skip
        sent += 2 * ORPHANS
    for sender in (STRANGER, lives["p0"]):
        epoch = lives["d0"].epoch
        flood(cluster, lives["d0"], [
            Progress(sender, epoch, room, 1, Status.FAILED, 0, GONE) for room in range(1, ORPHANS)
        ])  # fmt: skip
        flood(cluster, lives["d0"], [
            AbortAnswer(sender, epoch, room, 1, Fence.CLEAN) for room in range(1, ORPHANS)
        ])  # fmt: skip
        sent += 2 * ORPHANS
    assert eventually(lambda: post(f"{cluster.lb}/generate", PROBE)[0] == 200, 60)
    after = processes(cluster)
    assert [one.pid for one in after] == [one.pid for one in before]
    print(f"\n{sent} orphan messages")
    for old, new in zip(before, after, strict=True):
        grown = new.rss_bytes - old.rss_bytes
        print(f"  {old.instance} pid {old.pid}: {old.rss_bytes >> 20} MiB {grown / 2**20:+.1f} MiB")
        assert grown < GROWTH_BYTES
    assert post(f"{cluster.lb}/generate", PROBE)[1]["output_ids"] == said[1]["output_ids"]


def flood(cluster: Cluster, receiver: PeerId, messages: list[Message]) -> None:
    """Send messages and wait until all of them have been taken."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    way = context.socket(zmq.PUSH)
    way.setsockopt(zmq.SNDTIMEO, 30_000)
    way.setsockopt(zmq.IPV6, 1)
    way.connect(zmq_address(*inbox(cluster, receiver.instance)))
    sealer = Sealer(None)
    for message in messages:
        way.send(sealer.close(encode(message), receiver))
    way.close(linger=30_000)
    context.term()


def test_ten_seconds_of_fuzz_break_nothing(cluster: Cluster) -> None:
    summary = fuzz(cluster, FUZZ_S, seed=20)
    print("\n" + "\n".join(summary.lines()))
    assert summary.requests > 100
    assert summary.messages > 1000
    assert summary.complaints == []

"""Who does not match is refused on either side, with both values, and goes on with who does.

Each difference is put to a real prefill by a decode that the test plays, and the other way round;
one more decode really runs with other pages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from daemons.protocol.handshake import KvRegion, RegisterBuffers, RegistrationAnswer
from daemons.protocol.ids import PeerId
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.topology import Fingerprint, Registration, Role, State
from daemons.runtime.mailbox import Mailbox
from tests.live.conftest import CHAOS
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, get, running
from tests.support.faults import Client, Right, body, healthy, prompt_of
from tests.support.http import asked

pytestmark = pytest.mark.live
PROMPT = prompt_of(20)
OTHERS: dict[str, Any] = {
    "model": "another-model",
    "dtype": "bf16",
    "page_size": 8,
    "layers": 4,
    "kv_heads": 1,
    "head_dim": 32,
    "layout": "page-layer-head",
    "protocol": 9,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """d1 has smaller pages than the others."""
    folder: Path = tmp_path_factory.mktemp("mismatch")
    decodes = {"decode": {"d0": {}, "d1": {"engine": {"page_size": 8}}}}
    with running(folder, str(checkpoint("llama")), **CHAOS, **decodes) as cluster:
        yield cluster


@pytest.fixture
def plane() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def fingerprint(cluster: Cluster) -> Fingerprint:
    return msgspec.convert(cluster.instances()["p0"]["fingerprint"], Fingerprint)


def inbox(cluster: Cluster, instance: str) -> tuple[PeerId, str, int]:
    route = get(
        f"{cluster.book}/route?instance={instance}"
        "&prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
    )
    return PeerId(instance, route["epoch"]), route["rank_ip"], route["rank_port"]


def epochs(cluster: Cluster) -> dict[str, int]:
    rows = cluster.instances()
    return {name: rows[name]["epoch"] for name in ("p0", "d0", "d1")}


def registered(
    cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]], prints: Fingerprint
) -> RegistrationAnswer:
    """Register with p0 as a decode of the test's own; return its answer."""
    me = PeerId("d9", int(time.time() * 1000))
    mailbox = Mailbox(context, me, "127.0.0.1")
    peer, host, port = inbox(cluster, "p0")
    mailbox.connect(peer, host, port)
    regions = tuple(
        KvRegion(1 << 20, 1024, layer, kind, head)
        for layer in range(2)
        for kind in range(2)
        for head in range(2)
    )
    buffers = RegisterBuffers(
        me, peer.epoch, "127.0.0.1", mailbox.port, "nowhere", prints, 4, regions, 1 << 21,
        ROW_BYTES, 4,
    )  # fmt: skip
    mailbox.send(peer, buffers)
    answers: list[RegistrationAnswer] = []

    def heard() -> bool:
        found = [came.message for came in mailbox.receive()]
        answers.extend(one for one in found if isinstance(one, RegistrationAnswer))
        return bool(answers)

    assert eventually(heard, 10), "p0 does not answer"
    mailbox.close()
    return answers[0]


def test_a_decode_that_matches_is_taken(
    cluster: Cluster, plane: zmq.Context[zmq.Socket[bytes]]
) -> None:
    assert registered(cluster, plane, fingerprint(cluster)).refused == ""


@pytest.mark.parametrize("field", OTHERS)
def test_prefill_refuses_a_decode_and_shows_both_values(
    cluster: Cluster, right: Right, plane: zmq.Context[zmq.Socket[bytes]], field: str
) -> None:
    before = epochs(cluster)
    ours = fingerprint(cluster)
    theirs = msgspec.structs.replace(ours, **{field: OTHERS[field]})
    refused = registered(cluster, plane, theirs).refused
    assert f"{field}: ours {getattr(ours, field)!r}, theirs {OTHERS[field]!r}" in refused
    healthy(cluster, right)
    assert epochs(cluster) == before


@pytest.mark.parametrize("field", OTHERS)
def test_decode_refuses_a_prefill_and_shows_both_values(
    cluster: Cluster, right: Right, field: str
) -> None:
    before = epochs(cluster)
    ours = fingerprint(cluster)
    name = f"p-{field.replace('_', '-')}"
    stranger = Registration(
        instance=name,
        role=Role.PREFILL,
        epoch=int(time.time() * 1000),
        state=State.READY,
        http_host="127.0.0.1",
        http_port=9,
        lease_s=5,
        version="0",
        fingerprint=msgspec.structs.replace(ours, **{field: OTHERS[field]}),
        rank_ip="127.0.0.1",
        rank_port=9,
    )
    status, said = asked("PUT", f"{cluster.book}/route", msgspec.to_builtins(stranger))
    assert status == 200, said
    ended = Client(f"{cluster.url('d0')}/generate", leg(name)).end()
    assert ended.error is not None
    assert ended.error["cause"] == "pair.mismatch", ended.error
    assert ended.error["peer"] == name
    wanted = f"{field}: ours {getattr(ours, field)!r}, theirs {OTHERS[field]!r}"
    assert wanted in ended.error["message"]
    healthy(cluster, right)
    assert epochs(cluster) == before


def leg(prefill: str) -> dict[str, Any]:
    """Return a request for one worker."""
    room = random.getrandbits(50) + 1
    return {**body(PROMPT), "bootstrap_room": room, "bootstrap_instance": prefill}


def test_a_real_decode_with_other_pages_never_pairs_and_the_balancer_knows(
    cluster: Cluster, right: Right
) -> None:
    asked_legs = leg("p0")
    prefill = Client(f"{cluster.url('p0')}/generate", asked_legs)
    ended = Client(f"{cluster.url('d1')}/generate", asked_legs).end()
    prefill.leave()
    assert ended.error is not None
    assert ended.error["cause"] == "pair.mismatch"
    assert "page_size: ours 8, theirs 16" in ended.error["message"]
    for _ in range(4):
        healthy(cluster, right)  # pd-lb sends nobody to d1
    assert not sum(cluster.status("d1")["rooms"].values())
    told = cluster.pdctl("status")
    assert "cannot pair (page_size: " in told.stdout


def test_a_message_of_another_protocol_version_changes_nothing(
    cluster: Cluster, right: Right, plane: zmq.Context[zmq.Socket[bytes]]
) -> None:
    dropped = "messages_dropped:no message"
    before = cluster.status("p0")["counters"].get(dropped, 0)
    mailbox = Mailbox(plane, PeerId("d9", 1), "127.0.0.1")
    peer, host, port = inbox(cluster, "p0")
    mailbox.connect(peer, host, port)
    mailbox.send_bytes(peer, b"PD\x63" + bytes(40))
    assert eventually(lambda: cluster.status("p0")["counters"].get(dropped, 0) > before, 10)
    mailbox.close()
    healthy(cluster, right)

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from daemons.cluster.errors import OperatorError
from daemons.cluster.key import make_key
from daemons.cluster.load import load
from daemons.engine.config import EngineConfig
from daemons.protocol.codec import decode_to_front, encode
from daemons.protocol.generate import RankReady
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import Sealer
from daemons.protocol.topology import Role
from daemons.rank.equipment import Equipment, equip
from daemons.runtime.mailbox import zmq_address
from daemons.runtime.worker import Flags
from daemons.transfer.config import TransferConfig
from tests.support.checkpoints import checkpoint

ENGINE = EngineConfig(dtype="fp32", device="cpu", kv_tokens=64, page_size=16)
LOOPBACK = TransferConfig(backend="loopback")


@dataclass(frozen=True, slots=True)
class Settings:
    """Those of a small worker, of neither kind."""

    host: str = "local"
    bind: str = ""
    advertise: str = ""
    rows: int = 4
    engine: EngineConfig = ENGINE
    transfer: TransferConfig = LOOPBACK


def made(flags: Flags) -> Equipment:
    return equip(flags, Role.DECODE, Settings(), window_rooms=2)


def flags(folder: Path, model: str) -> Flags:
    file = folder / "cluster.yaml"
    file.write_text(f"name: t\nmodel: {model}\nprefill: {{p0: {{}}}}\ndecode: {{d0: {{}}}}\n")
    return Flags(load(file), "d0", 0, 77, f"ipc://{folder}/link")


@pytest.fixture
def front(tmp_path: Path) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    front = context.socket(zmq.PAIR)
    front.bind(f"ipc://{tmp_path}/link")
    yield front
    front.close(linger=0)
    context.term()


def test_a_rank_tells_its_front_what_it_has(tmp_path: Path, front: zmq.Socket[bytes]) -> None:
    equipment = made(flags(tmp_path, str(checkpoint("llama"))))
    equipment.announce()
    assert front.poll(5000)
    ready = decode_to_front(front.recv())
    assert isinstance(ready, RankReady)
    assert (ready.pages, ready.page_size, ready.max_tokens) == (4, 16, 64)
    assert ready.rank_port == equipment.mailbox.port
    assert ready.fingerprint == equipment.engine.fingerprint
    assert ready.transport == "loopback"
    equipment.close()
    os.close(equipment.wake.fd)


def test_a_model_that_is_not_there_is_the_operators_error(
    tmp_path: Path, front: zmq.Socket[bytes]
) -> None:
    with pytest.raises(OperatorError, match="no model"):
        made(flags(tmp_path, str(tmp_path / "nothing")))


@pytest.mark.parametrize("keyed", [True, False])
def test_a_rank_of_a_cluster_with_a_key_reads_sealed_messages_only(
    tmp_path: Path, front: zmq.Socket[bytes], *, keyed: bool
) -> None:
    given = flags(tmp_path, str(checkpoint("llama")))
    secret = None
    if keyed:
        secret = make_key(tmp_path / "key").plane
        given.file.path.write_text(given.file.path.read_text() + "key_file: key\n")
        given = Flags(load(given.file.path), "d0", 0, 77, given.link)
    equipment = made(given)
    heartbeat = encode(Heartbeat(PeerId("p0", 5), 77, 1.0))
    way = equipment.context.socket(zmq.PUSH)
    way.connect(zmq_address("127.0.0.1", equipment.mailbox.port))
    for sealer in (Sealer(secret), Sealer(None if keyed else b"k" * 32)):
        way.send(sealer.close(heartbeat, equipment.me))
    taken = []
    while len(taken) + sum(equipment.mailbox.dropped.values()) < 2:
        assert equipment.mailbox.inbox.poll(5000)
        taken += list(equipment.mailbox.receive())
    assert len(taken) == 1
    assert set(equipment.mailbox.dropped) == {"unsealed" if keyed else "sealed, no key here"}
    way.close(linger=0)
    equipment.close()
    os.close(equipment.wake.fd)

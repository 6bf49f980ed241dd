"""The Mooncake backend as a whole; what it shares with others is in the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import mooncake, peers, sockets
from daemons.transfer.backend import Copy, PeerGone, Region
from daemons.transfer.config import TransferConfig
from daemons.transfer.mooncake import Mooncake
from daemons.transfer.mooncake_engine import Engine
from daemons.transfer.mooncake_env import PORTS

Start = Callable[[], Mooncake]


@pytest.fixture
def start(module: Any, config: TransferConfig) -> Iterator[Start]:
    backends: list[Mooncake] = []

    def start() -> Mooncake:
        backends.append(Mooncake(module, config, "127.0.0.1"))
        return backends[-1]

    yield start
    for backend in backends:
        backend.close()


@pytest.fixture
def memory() -> np.ndarray:
    return np.arange(64, dtype=np.uint8)


def region(array: np.ndarray) -> Region:
    return Region(array.ctypes.data, array.nbytes)


def without_devices(monkeypatch: pytest.MonkeyPatch, *devices: str) -> None:
    folder = type("Folder", (), {})()
    folder.is_dir = lambda: bool(devices)
    folder.iterdir = lambda: [Path(device) for device in devices]
    monkeypatch.setattr(mooncake, "DEVICES", folder)


def test_rdma_without_a_device_is_refused(
    module: Any, config: TransferConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_devices(monkeypatch)
    with pytest.raises(OperatorError, match="uses TCP, not RDMA; devices: none"):
        mooncake._transport(TransferConfig(protocol="rdma"), tcp=True)


def test_the_carrier_is_what_the_engine_does_and_not_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_devices(monkeypatch, "mlx5_1", "mlx5_0")
    assert mooncake._transport(TransferConfig(protocol="auto"), tcp=True) == "tcp"
    assert mooncake._transport(TransferConfig(protocol="auto"), tcp=False) == "rdma mlx5_0,mlx5_1"
    assert mooncake._transport(TransferConfig(device="mlx5_1"), tcp=False) == "rdma mlx5_1"


def test_the_session_is_the_host_and_a_port_that_is_listened_on(start: Start) -> None:
    host, port = start().session.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) in sockets.listening(PORTS)


def test_memory_registered_after_the_first_write_can_be_written_from(
    start: Start, memory: np.ndarray
) -> None:
    sender, receiver = start(), start()
    later, target = memory[::-1].copy(), np.zeros(128, dtype=np.uint8)
    receiver.register([region(target)])
    sender.register([region(memory)])
    sender.write(receiver.session, [Copy(memory.ctypes.data, target.ctypes.data, 64)])
    sender.register([region(later)])
    sender.write(receiver.session, [Copy(later.ctypes.data, target.ctypes.data + 64, 64)])
    assert target.tolist() == [*memory, *later]


def test_engines_of_peers_unused_longest_are_ended(
    start: Start, memory: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LIMIT", 2)
    sender, target = start(), np.zeros(64, dtype=np.uint8)
    sender.register([region(memory)])
    receivers = [start() for _ in range(4)]
    for receiver in receivers:
        receiver.register([region(target)])
    before = sockets.listening(PORTS)
    for receiver in [*receivers, receivers[0]]:
        target[:] = 0
        sender.write(receiver.session, [Copy(memory.ctypes.data, target.ctypes.data, 64)])
        assert target.tolist() == memory.tolist()
    assert len(sockets.listening(PORTS) - before) == 2 * 2  # two ports each


def test_engines_unused_for_long_are_ended_when_a_new_peer_comes(
    start: Start, memory: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "IDLE_S", -1.0)
    sender, target = start(), np.zeros(64, dtype=np.uint8)
    sender.register([region(memory)])
    receivers = [start() for _ in range(3)]
    for receiver in receivers:
        receiver.register([region(target)])
    before = sockets.listening(PORTS)
    for receiver in receivers:
        for _ in range(2):
            sender.write(receiver.session, [Copy(memory.ctypes.data, target.ctypes.data, 64)])
    assert len(sockets.listening(PORTS) - before) == 2  # the last one's two ports


def test_the_engine_of_a_peer_that_died_is_ended_when_a_new_peer_comes(
    start: Start, memory: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PROBE_AFTER_S", -1.0)
    sender, target = start(), np.zeros(64, dtype=np.uint8)
    sender.register([region(memory)])
    died, lives, new = (start() for _ in range(3))
    for receiver in (died, lives, new):
        receiver.register([region(target)])
    for receiver in (died, lives):
        sender.write(receiver.session, [Copy(memory.ctypes.data, target.ctypes.data, 64)])
    died.close()
    before = sockets.listening(PORTS)
    sender.write(new.session, [Copy(memory.ctypes.data, target.ctypes.data, 64)])
    assert len(sockets.listening(PORTS) & before) == len(before) - 2  # the dead one's two ports
    sender.write(lives.session, [Copy(memory.ctypes.data, target.ctypes.data, 64)])


def test_a_peer_that_is_gone_leaves_no_engine_behind(start: Start, memory: np.ndarray) -> None:
    sender = start()
    sender.register([region(memory)])
    before = sockets.listening(PORTS)
    with pytest.raises(PeerGone):
        sender.write("127.0.0.1:9", [Copy(memory.ctypes.data, 1, 1)])
    assert sockets.listening(PORTS) == before


def test_a_write_that_breaks_in_an_unforeseen_way_leaves_no_engine_behind(
    start: Start, memory: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(engine: Engine, number: int) -> None:
        raise RuntimeError("unforeseen")

    sender = start()
    sender.register([region(memory)])
    before = sockets.listening(PORTS)
    monkeypatch.setattr(Engine, "check", broken)
    with pytest.raises(RuntimeError, match="unforeseen"):
        sender.write(sender.session, [Copy(memory.ctypes.data, memory.ctypes.data + 32, 32)])
    assert sockets.listening(PORTS) == before


def test_close_ends_all_engines(start: Start, memory: np.ndarray) -> None:
    before = sockets.listening(PORTS)
    sender = start()
    sender.register([region(memory)])
    sender.write(sender.session, [Copy(memory.ctypes.data, memory.ctypes.data + 32, 32)])
    sender.close()
    assert sockets.listening(PORTS) == before

"""A backend from outside, as a package of its own: what it takes to write one.

A distribution with an entry point of the group ``pd.transfer_backends`` and a factory behind it is
all; nothing of ours is edited. MORI and Ascend's engine would be added so, by those who have the
hardware. The example keeps its promises by copying inside one process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import registry
from daemons.transfer.backend import BadCopy, Copy, CopyTable, PeerGone, Region, WriteCut, table
from daemons.transfer.config import TransferConfig

MODULE = '''
"""An example of a backend: every write is a memmove."""

import ctypes
import itertools

from daemons.transfer.backend import PeerGone, WriteCut
from daemons.transfer.memory import Registered

_everybody, _numbers = {}, itertools.count(1)


def create(config, host):  # the entry point: TransferConfig, and our address as peers are told it
    return Example()


class Example:
    transport = "example"  # for people, in status and trace

    def __init__(self):
        self.session = f"example:{next(_numbers)}"  # by which peers find us; no "," or "="
        self.memory = Registered()
        _everybody[self.session] = self

    def transport_to(self, peer):
        return "example" if peer in _everybody else ""

    def register(self, regions):
        self.memory.add(regions)

    def write(self, peer, copies):  # blocks; a list of Copy, or a CopyTable of columns
        self.memory.check_sources(copies)  # BadCopy, before anything is sent
        receiver = _everybody.get(peer)
        if receiver is None:
            raise PeerGone(f"no {peer} here")  # nothing was sent
        for source, target, length in copies:
            if not receiver.memory.holds(target, length):
                # settled: nothing is on its way any more; where that is not so, leave it out
                raise WriteCut(f"{target:#x} is not the peer's", settled=True)
            ctypes.memmove(target, source, length)

    def close(self):
        _everybody.pop(self.session, None)
'''
METADATA = "Metadata-Version: 2.1\nName: pd-example\nVersion: 1.0\n"
ENTRY_POINTS = "[pd.transfer_backends]\nexample = pd_example:create\nbroken = pd_example:nothing\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, as pip would lay it out."""
    about = tmp_path / "pd_example-1.0.dist-info"
    about.mkdir()
    (tmp_path / "pd_example.py").write_text(MODULE)
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("pd_example", None)


def config(name: str) -> TransferConfig:
    return TransferConfig(backend=name)


def test_its_name_is_known_beside_ours(installed: None) -> None:
    assert {"example", "auto", "mooncake"} <= set(registry.names())


def test_it_moves_bytes_and_keeps_the_promises_of_the_seam(installed: None) -> None:
    sender, receiver = (registry.create(config("example"), "127.0.0.1") for _ in "ab")
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    here, there = source.ctypes.data, target.ctypes.data
    sender.register([Region(here, 64)])
    receiver.register([Region(there, 64)])
    sender.write(receiver.session, [Copy(here, there + 32, 32)])
    assert target[32:].tolist() == list(range(32))
    sender.write(receiver.session, table([Copy(here, there, 16), Copy(here + 16, there + 16, 16)]))
    assert target[:32].tolist() == list(range(32))
    assert isinstance(table([Copy(1, 2, 3)]), CopyTable)
    assert sender.transport_to(receiver.session) == "example"
    with pytest.raises(BadCopy):
        sender.write(receiver.session, [Copy(here + 1, there, 64)])
    with pytest.raises(WriteCut):
        sender.write(receiver.session, [Copy(here, there + 1, 64)])
    receiver.close()
    with pytest.raises(PeerGone):
        sender.write(receiver.session, [Copy(here, there, 1)])
    sender.close()


def test_one_that_does_not_load_says_where_it_comes_from(installed: None) -> None:
    with pytest.raises(OperatorError, match="pd_example:nothing"):
        registry.create(config("broken"), "127.0.0.1")

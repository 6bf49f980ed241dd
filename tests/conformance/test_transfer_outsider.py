"""A backend from outside, as a package of its own: what it takes to write one.

A distribution with an entry point of the group ``pd.transfer_backends`` and a factory behind it is
all; nothing of ours is edited. MORI and Ascend's engine would be added so, by those who have the
hardware. The example keeps its promises by copying inside one process; that it keeps all of them is
shown as its author would show it, by the suites of our own backends with ``--backend``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import registry
from daemons.transfer.backend import BadCopy, Copy, CopyTable, PeerGone, Region, WriteCut, table
from daemons.transfer.config import TransferConfig

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
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
            if _everybody.get(peer) is not receiver:
                raise WriteCut(f"{peer} has closed", settled=True)
            if not receiver.memory.holds(target, length):
                # settled: nothing is on its way any more; where that is not so, leave it out
                raise WriteCut(f"{target:#x} is not the peer's", settled=True)
            ctypes.memmove(target, source, length)

    def close(self):  # nothing is written after this
        _everybody.pop(self.session, None)
        self.memory = Registered()
'''
METADATA = "Metadata-Version: 2.1\nName: pd-example\nVersion: 1.0\n"
ENTRY_POINTS = "[pd.transfer_backends]\nexample = pd_example:create\nbroken = pd_example:nothing\n"


SUITES = ("test_transfer_backend.py", "test_transfer_faults.py")
PASSED = 30  # at least: so many of them are about any backend whose peer is in its process


def lay_out(folder: Path, module: str = MODULE) -> None:
    """Put the package into a folder, as pip would."""
    about = folder / "pd_example-1.0.dist-info"
    about.mkdir()
    (folder / "pd_example.py").write_text(module)
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINTS)


def suites(folder: Path, *words: str) -> tuple[int, str]:
    """Put the package through our suites; return pytest's exit code and what it says."""
    files = [str(HERE / name) for name in SUITES]
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "--backend", "example/inside"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *options, *words],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    lay_out(tmp_path)
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


def test_it_passes_every_test_that_ours_pass(tmp_path: Path) -> None:
    lay_out(tmp_path)
    code, said = suites(tmp_path, "-k", "example")
    assert code == 0, said
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= PASSED


@pytest.mark.parametrize(
    ("kept", "instead", "where"),
    [
        ("self.memory.check_sources(copies)", "pass", "target_zero_is_refused"),
        ('raise PeerGone(f"no {peer} here")', "return", "a_closed_peer_is_gone_or_cut"),
    ],
)
def test_a_promise_that_it_does_not_keep_is_found(
    tmp_path: Path, kept: str, instead: str, where: str
) -> None:
    assert MODULE.count(kept) == 1
    lay_out(tmp_path, MODULE.replace(kept, instead))
    code, said = suites(tmp_path, "-k", f"example and {where}")
    assert code == 1, said
    assert where in said

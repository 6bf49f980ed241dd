"""Every backend between two processes, under every fault: what is promised, cell by cell.

In each cell the same holds, whatever the medium: a write that has returned or raised sends
nothing more, so that bytes written into the source afterwards never land; and the pair works again
afterwards without anybody's help. What the medium makes of the fault is printed as a table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TextIO

import numpy as np
import pytest

from daemons.transfer import other_memory
from daemons.transfer.backend import Copy, PeerGone, Region, TransferBackend, WriteCut
from daemons.transfer.config import TransferConfig
from daemons.transfer.registry import create
from tests.support.transfer_process import Process, settled, until

TIMEOUT_S = 2.0
BYTES = 96 << 20  # more than sockets and a first burst can take
PAGE = 64 << 10
OLD, MARKER = 1, 2
BACKENDS = ["mooncake", "cma", "auto", "nixl"]

seen: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", autouse=True)
def matrix(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the table past the capture when all cells have run."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        draw(sys.stdout)


def draw(out: TextIO) -> None:
    faults = list(dict.fromkeys(fault for _, fault in seen))
    print("\n" + f"{'fault':26}" + "".join(f"{b:>22}" for b in BACKENDS), file=out)
    for fault in faults:
        row = "".join(f"{seen.get((backend, fault), '-'):>22}" for backend in BACKENDS)
        print(f"{fault:26}{row}", file=out)


class Pair:
    """A backend of this process and a peer in another."""

    def __init__(self, name: str, start: Callable[[], Process]) -> None:
        self.name, self.start = name, start
        config = TransferConfig(backend=name, write_timeout_s=TIMEOUT_S)
        self.backend: TransferBackend = create(config, "127.0.0.1")
        self.source = np.full(BYTES, OLD, dtype=np.uint8)
        self.backend.register([Region(self.source.ctypes.data, BYTES)])
        self.peer = start()

    def copies(self) -> list[Copy]:
        base = self.source.ctypes.data
        return [Copy(base + at, self.peer.address + at, PAGE) for at in range(0, BYTES, PAGE)]

    def write(self, copies: list[Copy] | None = None) -> str:
        """Return how a write ended."""
        try:
            self.backend.write(self.peer.session, self.copies() if copies is None else copies)
        except PeerGone:
            return "gone"
        except WriteCut as cut:
            return "cut, settled" if cut.settled else "cut"
        return "landed"

    def note(self, fault: str, ended: str) -> None:
        seen[(self.name, fault)] = ended

    def nothing_more_lands(self) -> int:
        """Change the source and return how many old bytes have landed in the end."""
        self.source[:] = MARKER
        landed, _ = settled(lambda: int(self.peer.ask("count", OLD)))
        assert self.peer.ask("count", MARKER) == 0
        return landed

    def works_again(self) -> None:
        self.source[:] = MARKER + 1
        assert self.write() == "landed"
        assert self.peer.ask("count", MARKER + 1) == BYTES


WANTING = pytest.mark.skipif(find_spec("nixl_cu12") is None, reason="nixl is not installed")


@pytest.fixture(params=[pytest.param(b, marks=[WANTING] * (b == "nixl")) for b in BACKENDS])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    name = request.param
    processes: list[Process] = []

    def start() -> Process:
        processes.append(Process(BYTES, backend=name))
        return processes[-1]

    made = Pair(name, start)
    yield made
    for process in processes:
        process.kill()
    made.backend.close()


def test_a_peer_that_is_well_has_every_byte(pair: Pair) -> None:
    ended = pair.write()
    pair.note("none", f"{ended} by {pair.backend.transport_to(pair.peer.session)}")
    assert ended == "landed"
    assert pair.peer.ask("count", OLD) == BYTES


def test_a_peer_frozen_under_a_write(pair: Pair) -> None:
    first = pair.copies()[:1]
    assert pair.write(first) == "landed"
    pair.peer.freeze()
    ended = pair.write()
    pair.source[:] = MARKER  # whoever was told may use the memory
    pair.peer.thaw()
    landed = pair.nothing_more_lands()
    pair.note("peer frozen", f"{ended}, {landed >> 20} MiB")
    assert ended in ("landed", "cut", "cut, settled")
    assert (landed == BYTES) == (ended == "landed")
    pair.works_again()


def test_a_peer_killed_before_a_write(pair: Pair) -> None:
    assert pair.write(pair.copies()[:1]) == "landed"
    pair.peer.kill()
    ended = pair.write()
    pair.note("peer killed before", ended)
    assert ended != "landed"
    assert pair.write() == "gone"


def test_a_peer_killed_under_a_write(pair: Pair) -> None:
    assert pair.write(pair.copies()[:1]) == "landed"
    many = [copy for _ in range(20) for copy in pair.copies()]  # lasts longer than the kill takes
    pid, second = pair.peer.pid, pair.peer.address + PAGE
    with ThreadPoolExecutor(1) as lane:
        write = lane.submit(pair.write, many)
        until(lambda: other_memory.read(pid, second, 1) == bytes([OLD]), "a page to land")
        pair.peer.kill()
        ended = write.result(10 * TIMEOUT_S)
    pair.note("peer killed under a write", ended)
    assert ended != "landed"
    assert pair.write() == "gone"


def test_a_restarted_peer(pair: Pair) -> None:
    assert pair.write(pair.copies()[:1]) == "landed"
    old = pair.peer
    old.kill()
    pair.peer = pair.start()
    old_copies = [Copy(pair.source.ctypes.data, old.address, PAGE)]
    ended = pair.write()
    with pytest.raises((PeerGone, WriteCut)):
        pair.backend.write(old.session, old_copies)
    pair.note("peer restarted", ended)
    assert ended == "landed"
    assert pair.peer.ask("count", OLD) == BYTES


def test_half_of_a_batch_is_bad(pair: Pair) -> None:
    assert pair.write(pair.copies()[:1]) == "landed"
    copies = pair.copies()
    copies[1::2] = [copy._replace(target=copy.target + BYTES) for copy in copies[1::2]]
    ended = pair.write(copies)
    landed = pair.nothing_more_lands()
    pair.note("half of a batch bad", f"{ended}, {landed >> 20} MiB")
    assert ended in ("cut", "cut, settled")
    pair.works_again()

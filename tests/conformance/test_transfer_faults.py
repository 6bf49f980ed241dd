"""Every backend between two processes, under every fault: what is promised, cell by cell.

In each cell the same holds, whatever the medium: a write that has returned or raised sends
nothing more, so that bytes written into the source afterwards never land; and the pair works again
afterwards without anybody's help. What the medium makes of the fault is told as a table.

The peer of loopback and of those called NAME/inside lies in this process: it is closed where others
are killed, and it cannot be frozen, for then whoever writes would be, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from daemons.transfer import other_memory
from daemons.transfer.backend import Copy, PeerGone, Region, TransferBackend, WriteCut
from tests.support.backends import BETWEEN, EVERY, NEEDS, backend_of, is_inside, marked
from tests.support.transfer_process import Process, settled, until

TIMEOUT_S = 2.0
BYTES = 96 << 20  # more than sockets and a first burst can take
PAGE = 64 << 10
OLD, MARKER = 1, 2
FAULTS = 6 if BETWEEN else 5  # with none at all
UNMARKED = {name for name in EVERY if name not in NEEDS}

seen: dict[tuple[str, str], str] = {}


def table() -> str:
    faults = list(dict.fromkeys(fault for _, fault in seen))
    ran = [name for name in EVERY if any(backend == name for backend, _ in seen)]
    lines = [f"{'fault':26}" + "".join(f"{b:>22}" for b in ran)]
    for fault in faults:
        row = "".join(f"{seen.get((backend, fault), '-'):>22}" for backend in ran)
        lines.append(f"{fault:26}{row}")
    return "\n".join(lines)


class Inside:
    """A peer in this process, with what is asked of one in another."""

    def __init__(self, backend: str) -> None:
        self._backend = backend_of(backend, TIMEOUT_S)
        self._memory = np.zeros(BYTES, dtype=np.uint8)
        self.session, self.pid = self._backend.session, os.getpid()
        self.address = self._memory.ctypes.data
        self._backend.register([Region(self.address, BYTES)])

    def ask(self, verb: str, value: int) -> int:
        assert verb == "count"
        return int(np.count_nonzero(self._memory == value))

    def kill(self) -> None:
        self._backend.close()


class Pair:
    """A backend of this process and a peer, in another where the medium allows it."""

    def __init__(self, name: str, start: Callable[[], Process | Inside]) -> None:
        self.name, self.start = name, start
        self.backend: TransferBackend = backend_of(name, TIMEOUT_S)
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


@pytest.fixture(params=marked(EVERY))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    name = request.param
    peers: list[Process | Inside] = []

    def start() -> Process | Inside:
        peers.append(Inside(name) if is_inside(name) else Process(BYTES, backend=name))
        return peers[-1]

    made = Pair(name, start)
    yield made
    for peer in peers:
        peer.kill()
    made.backend.close()


def test_a_peer_that_is_well_has_every_byte(pair: Pair) -> None:
    ended = pair.write()
    pair.note("none", f"{ended} by {pair.backend.transport_to(pair.peer.session)}")
    assert ended == "landed"
    assert pair.peer.ask("count", OLD) == BYTES


@pytest.mark.parametrize("pair", marked(BETWEEN), indirect=True)
def test_a_peer_frozen_under_a_write(pair: Pair) -> None:
    assert isinstance(pair.peer, Process)
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


def test_every_fault_was_put_to_every_backend(
    request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    tell(table())
    faults, ran = {fault for _, fault in seen}, {name for name, _ in seen}
    if request.config.option.keyword or len(faults) < FAULTS or not ran >= UNMARKED:
        pytest.skip("only some of the tests above were run")
    frozen = {(name, "peer frozen") for name in EVERY if is_inside(name)}
    cells = {(name, fault) for name in ran for fault in faults} - frozen
    assert set(seen) == cells

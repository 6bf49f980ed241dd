"""The ways by which KV pages reach another process, each as one round that is timed.

Rooms are dealt to as many peers as there are lanes, and the lanes work at once, as a prefill's do:
one thread for each peer. Every pool was touched by both sides before a clock runs, and the pages
move through it from round to round, so that little is in the caches.
"""

from __future__ import annotations

import ctypes
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from daemons.kv.shareable import shareable
from daemons.prefill.peer_lane import QUANTUM_BYTES
from daemons.prefill.write_lanes import GROUP_BYTES
from daemons.protocol.handshake import KvRegion
from daemons.transfer import mooncake_env
from daemons.transfer.backend import Copy, CopyTable, Region, TransferBackend
from daemons.transfer.combs import combs, copy
from daemons.transfer.config import TransferConfig
from daemons.transfer.itinerary import Itinerary, Part
from daemons.transfer.mooncake_engine import Engine
from daemons.transfer.plan import Pairing, pairing
from daemons.transfer.registry import create
from tests.support.transfer_process import Process

NAIVE_CALLS = 600  # one round of the naive way makes at most so many calls
HOST = "127.0.0.1"
SINK = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0)); print(server.getsockname()[1], flush=True)
sock, _ = server.accept(); into = bytearray(int(sys.argv[1]))
while head := sock.recv(8, socket.MSG_WAITALL):
    left = int.from_bytes(head, "little")
    while left: left -= sock.recv_into(into, min(left, len(into)))
    sock.sendall(b"k")
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The KV of a model in some layout: planes, each of which holds a piece of every page."""

    name: str
    planes: int
    page_bytes: int  # in one plane
    layers: int = 1  # that the planes are of

    @property
    def whole_page_bytes(self) -> int:
        """Of a page in all planes."""
        return self.planes * self.page_bytes

    def regions(self, address: int, pages: int) -> list[KvRegion]:
        """Return the regions of a pool; planes of a layer pair by number, whatever they hold."""
        size, of_layer = pages * self.page_bytes, self.planes // self.layers
        return [
            KvRegion(address + i * size, self.page_bytes, i // of_layer, 0, i % of_layer)
            for i in range(self.planes)
        ]


@dataclass(frozen=True, slots=True)
class Case:
    """One line: ``rooms`` rooms of ``pages`` pages, in pieces that fit into the pool."""

    shape: Shape
    pages: int
    rooms: int
    pool_pages: int
    run: int = 0  # pages that are neighbours; 0: all of a room's

    @property
    def bytes(self) -> int:
        """That one round moves."""
        return self.rooms * self.pages * self.shape.whole_page_bytes

    def chunks(self, shift: int) -> Iterator[tuple[int, ...]]:
        """Yield the pages of each write; every room begins elsewhere in the pool."""
        at = shift
        for _ in range(self.rooms):
            left = self.pages
            while left:
                count = min(left, self.pool_pages // 2 if self.run else self.pool_pages)
                gaps = count // self.run if self.run else 0
                begin = at % (self.pool_pages - count - gaps + 1)
                yield tuple(begin + i + (i // self.run if self.run else 0) for i in range(count))
                at, left = at + count, left - count

    def dealt(self, shift: int, lanes: int) -> list[list[tuple[int, ...]]]:
        """Return the chunks of each lane."""
        every = list(self.chunks(shift))
        return [every[lane::lanes] for lane in range(min(lanes, len(every)))]


Way = Callable[[Case, int], float]  # one round, shifted by so many pages; returns GB/s
Chunk = tuple[int, ...]


class Lanes:
    """Threads, one for each peer."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count)

    def rate(
        self,
        case: Case,
        work: Callable[[int, Chunk], object],
        shift: int,
        moved_bytes: int = 0,
    ) -> float:
        """Have each lane work off its chunks, all at once; returns the rate of it in GB/s."""
        dealt = case.dealt(shift, self.count)

        def run(lane: int) -> None:
            for chunk in dealt[lane]:
                work(lane, chunk)

        begun = time.perf_counter()
        if len(dealt) == 1:
            run(0)
        else:
            list(self._pool.map(run, range(len(dealt))))
        return (moved_bytes or case.bytes) / (time.perf_counter() - begun) / 1e9


class Memory:
    """Two pools of this process: what is sent, and where a memcpy puts it."""

    def __init__(self, length: int, lanes: Lanes) -> None:
        self.source, self.target = (
            np.frombuffer(shareable(length), dtype=np.uint8) for _ in range(2)
        )
        self.source[:] = 1
        self.target[:] = 1
        self.lanes = lanes
        self.region = Region(self.source.ctypes.data, length)
        self._within: dict[tuple[Shape, int], Pairing] = {}

    def memcpy(self, case: Case, shift: int) -> float:
        """Copy as many bytes in one piece for each write."""
        size = case.shape.whole_page_bytes
        here, there = self.source.ctypes.data, self.target.ctypes.data
        last = self.region.bytes - case.pages * size

        def work(_: int, chunk: Chunk) -> None:
            at = min(chunk[0] * size, last) if last > 0 else 0
            ctypes.memmove(there + at, here + at, len(chunk) * size)

        return self.lanes.rate(case, work, shift)

    def copies(self, case: Case, shift: int) -> float:
        """Copy the very pieces of the transfer, planned before the clock runs."""
        paired = self.pairing(case, self.target.ctypes.data)
        plans = {c: combs(paired.copies(paired.runs(c, c))) for c in case.chunks(shift)}
        return self.lanes.rate(case, lambda _, chunk: [copy(one) for one in plans[chunk]], shift)

    def pairing(self, case: Case, there: int) -> Pairing:
        """Return what a lane computes when a decode registers."""
        key = case.shape, there
        if key not in self._within:
            pages = case.pool_pages
            self._within[key] = pairing(
                case.shape.regions(self.region.address, pages),
                case.shape.regions(there, pages),
                source_pool_pages=pages,
                target_pool_pages=pages,
            )
        return self._within[key]


@contextmanager
def plain_socket(memory: Memory) -> Iterator[Way]:
    """A stream to another process that reads and answers each write with a byte."""
    process = subprocess.Popen(
        [sys.executable, "-c", SINK, str(4 << 20)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    sock = socket.create_connection((HOST, int(process.stdout.readline())))
    view = memoryview(memory.source)  # type: ignore[arg-type]
    one = Lanes(1)

    def send(case: Case, shift: int) -> float:
        size = case.shape.whole_page_bytes

        def work(_: int, chunk: Chunk) -> None:
            begin = min(chunk[0] * size, max(0, len(view) - len(chunk) * size))
            sock.sendall((len(chunk) * size).to_bytes(8, "little"))
            sock.sendall(view[begin : begin + len(chunk) * size])
            assert sock.recv(1) == b"k"

        return one.rate(case, work, shift)

    yield send
    sock.close()
    process.wait(10)


class Planning(NamedTuple):
    """What it costs to plan, as medians of rounds.

    Attributes:
        share: of planning and writing, all of it.
        each_us: for a chunk, all of it.
        waited: share of what is left to do when layers are there that a forward has just left.
    """

    share: float
    each_us: float
    waited: float


class Backend:
    """One of ours and its peers, used as prefill's lanes do."""

    def __init__(self, name: str, memory: Memory) -> None:
        config = TransferConfig(backend=name, write_timeout_s=2)
        self.name, self.memory = name, memory
        self.backend: TransferBackend = create(config, HOST)
        self.backend.register([memory.region])
        length = memory.region.bytes
        self.peers = [Process(length, backend=name) for _ in range(memory.lanes.count)]
        for peer in self.peers:
            peer.ask("fill", 0)
            everything = Copy(memory.region.address, peer.address, length)
            self.backend.write(peer.session, [everything])  # no page is new to either side now
        self.planned: list[tuple[float, float]] = []  # of each round, planning and writing: the
        self.followed: list[tuple[float, float]] = []  # sums of all lanes, in seconds

    @property
    def transport(self) -> str:
        """What really carries the bytes."""
        return self.backend.transport_to(self.peers[0].session)

    def pairing(self, case: Case, lane: int = 0) -> Pairing:
        """Return what a lane computes when a decode registers."""
        return self.memory.pairing(case, self.peers[lane].address)

    def send(self, case: Case, shift: int) -> float:
        """Plan and write, as after a forward: all layers are there."""
        layers = range(case.shape.layers)
        planning_s, writing_s = ([0.0] * len(self.peers) for _ in range(2))

        def work(lane: int, chunk: Chunk) -> None:
            begun = time.perf_counter()
            slices = self._itinerary(case, lane, chunk).slices(layers)
            planned = time.perf_counter()
            for some in slices:
                self.backend.write(self.peers[lane].session, some)
            writing_s[lane] += time.perf_counter() - planned
            planning_s[lane] += planned - begun

        rate = self.memory.lanes.rate(case, work, shift)
        self.planned.append((sum(planning_s), sum(writing_s)))
        return rate

    def follow(self, case: Case, shift: int) -> float:
        """Write as behind a forward: groups of layers, planned before they are there."""
        layers, layer_bytes = case.shape.layers, case.shape.whole_page_bytes // case.shape.layers
        waiting_s, writing_s = ([0.0] * len(self.peers) for _ in range(2))

        def work(lane: int, chunk: Chunk) -> None:
            itinerary = self._itinerary(case, lane, chunk)
            group = max(1, math.ceil(GROUP_BYTES / (len(chunk) * layer_bytes)))
            for first in range(0, layers, group):
                some = range(first, min(first + group, layers))
                itinerary.expect(some)
                there = time.perf_counter()
                slices = itinerary.slices(some)
                ready = time.perf_counter()
                for part in slices:
                    self.backend.write(self.peers[lane].session, part)
                writing_s[lane] += time.perf_counter() - ready
                waiting_s[lane] += ready - there

        rate = self.memory.lanes.rate(case, work, shift)
        self.followed.append((sum(waiting_s), sum(writing_s)))
        return rate

    def _itinerary(self, case: Case, lane: int, chunk: Chunk) -> Itinerary:
        paired = self.pairing(case, lane)
        part = Part(range(case.shape.layers), paired, paired.runs(chunk, chunk))
        return Itinerary([part], QUANTUM_BYTES)

    def planning(self, rounds: int, chunks: int) -> Planning:
        """Return what planning cost in the last rounds of so many chunks."""
        planned = self.planned[-rounds:]
        return Planning(
            statistics.median(plan / (plan + write) for plan, write in planned),
            statistics.median(plan for plan, _ in planned) / chunks * 1e6,
            statistics.median(wait / (wait + write) for wait, write in self.followed[-rounds:]),
        )

    def close(self) -> None:
        """End all sides."""
        for peer in self.peers:
            peer.kill()
        self.backend.close()


class Bare:
    """Mooncake's engine without anything of ours, to the peers of our Mooncake backend."""

    def __init__(self, memory: Memory, ours: Backend) -> None:
        module = mooncake_env.load(TransferConfig(write_timeout_s=2), HOST)
        self.ours, self.lanes = ours, memory.lanes
        self.engine = Engine(module, HOST, "")
        self.engine.register([memory.region])
        self.raw = self.engine._live()

    def naive(self, case: Case, shift: int) -> float:
        """One blocking call per page and region, by one thread; a part of it stands for all."""
        pages = next(case.chunks(shift))
        paired = self.ours.pairing(case)
        some = pages[: max(1, NAIVE_CALLS // len(paired.layers))]
        each = [c for page in some for c in paired.copies(paired.runs((page,), (page,)))]
        each = each[:NAIVE_CALLS]
        session = self.ours.peers[0].session
        begun = time.perf_counter()
        for source, target, length in each:
            assert self.raw.transfer_sync_write(session, source, target, length) == 0
        return sum(one.bytes for one in each) / (time.perf_counter() - begun) / 1e9

    def merged(self, case: Case, shift: int) -> float:
        """Blocking calls with copies merged as far as can be, planned before the clock runs."""
        batches: dict[tuple[int, Chunk], list[CopyTable]] = {}
        for lane, chunks in enumerate(case.dealt(shift, self.lanes.count)):
            paired = self.ours.pairing(case, lane)
            for chunk in chunks:
                plan = paired.copies(paired.runs(chunk, chunk))
                batches[lane, chunk] = [plan[i : i + 1000] for i in range(0, len(plan), 1000)]
        ready = {key: [columns(one) for one in some] for key, some in batches.items()}
        call = self.raw.batch_transfer_sync_write

        def work(lane: int, chunk: Chunk) -> None:
            for batch in ready[lane, chunk]:
                assert call(self.ours.peers[lane].session, *batch) == 0

        return self.lanes.rate(case, work, shift)


def columns(copies: CopyTable) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return copies as Mooncake takes them."""
    return copies.source.tolist(), copies.target.tolist(), copies.bytes.tolist()


def measure(case: Case, ways: dict[str, Way], seconds: float) -> dict[str, list[float]]:
    """Return the rates of each way, round by round in turns: at least three."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(case, 0)  # connections
    begun, shift = time.perf_counter(), case.pages * case.rooms
    while min(map(len, rates.values())) < 3 or time.perf_counter() - begun < seconds:
        for name, way in ways.items():
            rates[name].append(way(case, shift))
        shift += case.pages * case.rooms
    return rates

"""How fast KV pages reach another process, by each backend, beside what the machine can do.

Each line is one shape of KV, so many pages per room, one or eight rooms. In turns, in one run: a
memcpy of as many bytes, one plain loopback socket, Mooncake called bare (one blocking call per
page and region; blocking calls with ideally merged copies), then each backend as a prefill uses
it: plan, then write. The pages move through the pool from round to round, so that little is in the
caches. Figures are medians, in GB/s; what counts are the ratios of one line.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemons.kv.shareable import shareable
from daemons.protocol.handshake import KvRegion
from daemons.transfer import mooncake_env
from daemons.transfer.backend import Copy, CopyTable, Region, TransferBackend
from daemons.transfer.config import TransferConfig
from daemons.transfer.mooncake_engine import Engine
from daemons.transfer.plan import Pairing, cut, pairing
from daemons.transfer.registry import create
from tests.support.transfer_process import Process

PAGES = (1, 4, 16, 64, 256, 1024, 4096)
SLICE_BYTES = 64 << 20  # as a prefill hands them over
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
    """The KV of a model."""

    name: str
    layers: int
    kv_heads: int
    page_bytes: int  # of one head and kind: 16 tokens

    @property
    def whole_page_bytes(self) -> int:
        """Of a page in every layer, kind and head."""
        return self.layers * 2 * self.kv_heads * self.page_bytes

    def regions(self, address: int, pages: int) -> list[KvRegion]:
        """Return the regions of a pool, as the engine lays it out."""
        places = (
            (layer, kind, head)
            for layer in range(self.layers)
            for kind in (0, 1)
            for head in range(self.kv_heads)
        )
        size = pages * self.page_bytes
        return [
            KvRegion(address + i * size, self.page_bytes, *place) for i, place in enumerate(places)
        ]


SHAPES = (
    Shape("smollm2-135m", 30, 3, 16 * 64 * 2),
    Shape("8b", 32, 8, 16 * 128 * 2),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One line: ``rooms`` rooms of ``pages`` pages, in pieces that fit into the pool."""

    shape: Shape
    pages: int
    rooms: int
    pool_pages: int

    @property
    def bytes(self) -> int:
        """That one round moves."""
        return self.rooms * self.pages * self.shape.whole_page_bytes

    def chunks(self, shift: int) -> Iterator[range]:
        """Yield the pages of each write; every room begins elsewhere in the pool."""
        at = shift
        for _ in range(self.rooms):
            left = self.pages
            while left:
                count = min(left, self.pool_pages)
                begin = at % (self.pool_pages - count + 1)
                yield range(begin, begin + count)
                at, left = at + count, left - count


Way = Callable[[Case, int], float]  # one round, shifted by so many pages; returns GB/s


def timed(case: Case, work: Callable[[], object], moved_bytes: int = 0) -> float:
    """Return the rate of one round, in GB/s."""
    begun = time.perf_counter()
    work()
    return (moved_bytes or case.bytes) / (time.perf_counter() - begun) / 1e9


class Memory:
    """Two pools of this process: what is sent, and where a memcpy puts it."""

    def __init__(self, length: int) -> None:
        self.source, self.target = (
            np.frombuffer(shareable(length), dtype=np.uint8) for _ in range(2)
        )
        self.source[:] = 1
        self.target[:] = 1
        self.region = Region(self.source.ctypes.data, length)

    def memcpy(self, case: Case, shift: int) -> float:
        """Copy as many bytes in as few pieces as there are writes."""
        size = case.shape.whole_page_bytes
        here, there = self.source.ctypes.data, self.target.ctypes.data
        pieces = [(chunk.start * size, len(chunk) * size) for chunk in case.chunks(shift)]
        return timed(
            case, lambda: [ctypes.memmove(there + at, here + at, count) for at, count in pieces]
        )


@contextmanager
def plain_socket(memory: Memory) -> Iterator[Way]:
    """A stream to another process that reads and answers each write with a byte."""
    process = subprocess.Popen(
        [sys.executable, "-c", SINK, str(4 << 20)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    sock = socket.create_connection((HOST, int(process.stdout.readline())))
    view = memoryview(memory.source)  # type: ignore[arg-type]

    def send(case: Case, shift: int) -> float:
        def work() -> None:
            size = case.shape.whole_page_bytes
            for chunk in case.chunks(shift):
                sock.sendall((len(chunk) * size).to_bytes(8, "little"))
                sock.sendall(view[chunk.start * size : chunk.stop * size])
                assert sock.recv(1) == b"k"

        return timed(case, work)

    yield send
    sock.close()
    process.wait(10)


class Backend:
    """One of ours and a peer of it, used as prefill's lanes do."""

    def __init__(self, name: str, memory: Memory) -> None:
        config = TransferConfig(backend=name, write_timeout_s=2)
        self.backend: TransferBackend = create(config, HOST)
        self.backend.register([memory.region])
        self.memory = memory
        self.peer = Process(memory.region.bytes, backend=name)
        self.peer.ask("fill", 0)
        everything = Copy(memory.region.address, self.peer.address, memory.region.bytes)
        self.backend.write(self.peer.session, [everything])  # no page is new to either side now
        self.planning_s: list[float] = []
        self.writing_s: list[float] = []
        self._pairings: dict[str, Pairing] = {}

    def pairing(self, case: Case) -> Pairing:
        """Return what a lane computes when a decode registers."""
        if case.shape.name not in self._pairings:
            pages = case.pool_pages
            self._pairings[case.shape.name] = pairing(
                case.shape.regions(self.memory.region.address, pages),
                case.shape.regions(self.peer.address, pages),
                source_pool_pages=pages,
                target_pool_pages=pages,
            )
        return self._pairings[case.shape.name]

    def send(self, case: Case, shift: int) -> float:
        """Plan and write."""
        paired, planning_s = self.pairing(case), 0.0

        def work() -> None:
            nonlocal planning_s
            for chunk in case.chunks(shift):
                pages = tuple(chunk)
                begun = time.perf_counter()
                slices = cut(paired.copies(paired.runs(pages, pages)), SLICE_BYTES)
                planning_s += time.perf_counter() - begun
                for part in slices:
                    self.backend.write(self.peer.session, part)

        rate = timed(case, work)
        self.planning_s.append(planning_s)
        self.writing_s.append(case.bytes / rate / 1e9 - planning_s)
        return rate

    def close(self) -> None:
        """End both sides."""
        self.peer.kill()
        self.backend.close()


class Bare:
    """Mooncake's engine without anything of ours, to the peer of our Mooncake backend."""

    def __init__(self, memory: Memory, ours: Backend) -> None:
        module = mooncake_env.load(TransferConfig(write_timeout_s=2), HOST)
        self.ours = ours
        self.engine = Engine(module, HOST, "")
        self.engine.register([memory.region])
        self.raw = self.engine._live()

    def naive(self, case: Case, shift: int) -> float:
        """One blocking call per page and region."""
        pages = tuple(next(case.chunks(shift)))
        paired = self.ours.pairing(case)
        some = pages[: max(1, NAIVE_CALLS // len(paired.layers))]
        copies = [c for page in some for c in paired.copies(paired.runs((page,), (page,)))]
        session = self.ours.peer.session

        def work() -> None:
            for source, target, length in copies[:NAIVE_CALLS]:
                assert self.raw.transfer_sync_write(session, source, target, length) == 0

        return timed(case, work, sum(copy.bytes for copy in copies[:NAIVE_CALLS]))

    def merged(self, case: Case, shift: int) -> float:
        """Blocking calls with copies merged as far as can be, planned before the clock runs."""
        paired = self.ours.pairing(case)
        plans = [paired.copies(paired.runs(*[tuple(c)] * 2)) for c in case.chunks(shift)]
        batches = [lists(plan[i : i + 1000]) for plan in plans for i in range(0, len(plan), 1000)]
        session, call = self.ours.peer.session, self.raw.batch_transfer_sync_write

        def work() -> None:
            for batch in batches:
                assert call(session, *batch) == 0

        return timed(case, work)


def lists(copies: CopyTable) -> tuple[list[int], list[int], list[int]]:
    """Return copies as Mooncake takes them."""
    return copies.source.tolist(), copies.target.tolist(), copies.bytes.tolist()


def measure(case: Case, ways: dict[str, Way], seconds: float) -> dict[str, list[float]]:
    """Return the rates of each way, round by round in turns: at least three."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(case, 0)  # connections, and pages that were never touched
    begun, shift = time.perf_counter(), case.pages * case.rooms
    while min(map(len, rates.values())) < 3 or time.perf_counter() - begun < seconds:
        for name, way in ways.items():
            rates[name].append(way(case, shift))
        shift += case.pages * case.rooms
    return rates


def host_facts() -> dict[str, object]:
    """Return what a reader must know to compare."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
    }


def backends(wanted: str) -> list[str]:
    """Return the backends to measure; those that are not installed are left out aloud."""
    names = wanted.split(",")
    if "nixl" in names and importlib.util.find_spec("nixl_cu12") is None:
        print("nixl is not installed: not measured")
        names.remove("nixl")
    return names


def main(argv: Sequence[str]) -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(prog="bench transfer", description=__doc__)
    parser.add_argument("--pages", default=",".join(map(str, PAGES)), help="per room")
    parser.add_argument("--rooms", default="1,8")
    parser.add_argument("--shapes", default=",".join(shape.name for shape in SHAPES))
    parser.add_argument("--backends", default="mooncake,cma,nixl")
    parser.add_argument("--pool-mib", type=int, default=512, help="of each of two or more pools")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each line, at least")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    flags = parser.parse_args(argv)
    memory = Memory(flags.pool_mib << 20)
    ours = {name: Backend(name, memory) for name in backends(flags.backends)}
    rows: list[dict[str, object]] = []
    with plain_socket(memory) as stream:
        ways: dict[str, Way] = {"memcpy": memory.memcpy, "socket": stream}
        if "mooncake" in ours:
            bare = Bare(memory, ours["mooncake"])
            ways |= {"naive": bare.naive, "merged": bare.merged}
        ways |= {name: backend.send for name, backend in ours.items()}
        head = f"{'shape':>13}{'rooms':>6}{'pages':>6}{'MiB':>8}"
        print(head + "".join(f"{name:>10}" for name in ways) + f"{'plan %':>8}")
        for case in cases(flags):
            row = line(case, ways, ours, flags.seconds)
            rows.append(row)
    for backend in ours.values():
        backend.close()
    print("GB/s; naive and merged are Mooncake called bare; plan: of the fastest of ours")
    if flags.json:
        document = {"schema_version": 1, "host": host_facts(), "rows": rows}
        flags.json.write_text(json.dumps(document, indent=1))
    return 0


def cases(flags: argparse.Namespace) -> Iterator[Case]:
    """Yield the lines of the table."""
    for shape in SHAPES:
        if shape.name not in flags.shapes.split(","):
            continue
        pool_pages = (flags.pool_mib << 20) // shape.whole_page_bytes
        for rooms in map(int, flags.rooms.split(",")):
            for pages in map(int, flags.pages.split(",")):
                yield Case(shape, pages, rooms, pool_pages)


def line(
    case: Case, ways: dict[str, Way], ours: dict[str, Backend], seconds: float
) -> dict[str, object]:
    """Measure one line and print it."""
    rates = measure(case, ways, seconds)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    fastest = max(ours, key=medians.__getitem__)
    rounds, backend = len(rates[fastest]), ours[fastest]
    spent = zip(backend.planning_s[-rounds:], backend.writing_s[-rounds:], strict=True)
    share = statistics.median(plan / write for plan, write in spent)
    words = f"{case.shape.name:>13}{case.rooms:>6}{case.pages:>6}{case.bytes / (1 << 20):>8.1f}"
    print(
        words + "".join(f"{r:>10.3f}" for r in medians.values()) + f"{100 * share:>8.2f}",
        flush=True,
    )
    return {
        "shape": case.shape.name,
        "rooms": case.rooms,
        "pages": case.pages,
        "bytes": case.bytes,
        "gb_per_s": medians,
        "samples": rates,
        "planning_share": share,
        "planned_for": fastest,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

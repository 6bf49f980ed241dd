"""Corruption on the way is caught, whichever chunk it strikes, and only then.

Rooms of several chunks go over a backend that turns one bit of one copy, from prefill's lanes to
decode's memory; what decode says of the sums in the row is compared with what was done. The same
holds where decode has the beginning already, and where layers have window pages of their own.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import pytest

from daemons.engine.progress import Progress
from daemons.kv.stretch import Stretch
from daemons.kv.window import Windows
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.chunk_sums import ChunkSums
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone
from daemons.prefill.write_lanes import Source, WriteLanes
from daemons.protocol.generate import TokenOut
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES, Row, RowState, pack, unpack
from daemons.protocol.topology import Fingerprint
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import Region
from daemons.transfer.loopback import Loopback
from daemons.transfer.sums import PageSums

ROUNDS = 100
PAGES, PAGE_BYTES, LAYERS = 32, 256, 3
CHUNKS, CHUNK_PAGES = 5, 4
PAGE_SIZE = 16  # tokens
WINDOWED = WindowPool(Windows(PAGE_SIZE, (None, 100, 40)), PAGES)
KINDS = {  # with the pages of a prompt that decode has already
    "whole": (0, NO_POOL),
    "behind a prefix": (3, NO_POOL),
    "with windows": (3, WINDOWED),
}
D0 = PeerId("d0", 3)


@dataclass
class Pool:
    """Pages of one head in some layers."""

    bytes: np.ndarray = field(
        default_factory=lambda: np.zeros((LAYERS, 2, PAGES, PAGE_BYTES), dtype=np.uint8)
    )

    @property
    def regions(self) -> tuple[KvRegion, ...]:
        base, size = self.bytes.ctypes.data, PAGES * PAGE_BYTES
        return tuple(
            KvRegion(base + (2 * layer + kind) * size, PAGE_BYTES, layer, kind, 0)
            for layer in range(LAYERS)
            for kind in (0, 1)
        )

    @property
    def memory(self) -> Region:
        return Region(self.bytes.ctypes.data, self.bytes.nbytes)


class Bench:
    """A prefill's lanes and a decode's memory, with a wire between them that may spoil a copy."""

    def __init__(self, kind: str) -> None:
        """Of a ``kind`` of rooms."""
        self.kind = kind
        self.prefix, window = KINDS[kind]
        self.window = window
        self.ours, self.theirs = Pool(), Pool()
        self.rows, self.their_rows = RowMemory(1), RowMemory(1)
        self.struck = 0  # the page that is to be spoilt counts down to 1
        self.random = random.Random(7)
        self.sender, self.receiver = Loopback(self._move), Loopback()
        self.sender.register([self.ours.memory, Region(self.rows.address, ROW_BYTES)])
        self.receiver.register([self.theirs.memory, Region(self.their_rows.address, ROW_BYTES)])
        self.events: SimpleQueue[object] = SimpleQueue()
        sums = ChunkSums(PageSums(self.ours.regions, PAGES, window), "all")
        source = Source(self.ours.regions, PAGES, self.rows, Progress(LAYERS), sums, window=window)
        self.lanes = WriteLanes(self.sender, source, self.events.put, lambda *_: None)
        self.lanes.learn(D0, self.buffers())
        self.verifier = PageSums(self.theirs.regions, PAGES, window)

    def buffers(self) -> RegisterBuffers:
        fingerprint = Fingerprint("m", "fp32", 16, LAYERS, 1, 1)
        return RegisterBuffers(
            D0, 1, "h", 1, self.receiver.session, fingerprint, PAGES, self.theirs.regions,
            self.their_rows.address, ROW_BYTES, 1, window_pages=self.window.pages,
        )  # fmt: skip

    def _move(self, target: int, source: int, length: int) -> None:
        ctypes.memmove(target, source, length)
        if length == ROW_BYTES:
            return
        self.struck -= 1
        if self.struck == 0:
            at = target + self.random.randrange(length)
            ctypes.c_ubyte.from_address(at).value ^= 1 << self.random.randrange(8)

    def room(self, key: RoomKey, struck: int) -> tuple[str, int]:
        """Send a room; return what decode says of it, and how many copies there were."""
        self.ours.bytes[:] = np.random.default_rng(key.room).integers(
            0, 256, self.ours.bytes.shape, dtype=np.uint8
        )
        self.struck = struck
        count, begin = CHUNKS * CHUNK_PAGES, self.prefix
        tokens = (begin + count) * PAGE_SIZE
        places = random.Random((key.room + 1) // 2)  # two rooms in a row have the same copies
        here, there, own, their_own = (tuple(places.sample(range(PAGES), count)) for _ in "abcd")
        seen = self.window.first_needed(tokens) if self.window else begin + count
        ours, theirs = Stretch(begin, here, seen, own), Stretch(begin, there, seen, their_own)
        row = pack(Row(key, TokenOut(5)))
        for at in range(begin, begin + count, CHUNK_PAGES):
            end = at + CHUNK_PAGES
            source, target = ours.part(at, end), theirs.part(at, end)
            self.lanes.write(
                WriteKV(
                    key, D0, source.pages, target.pages, row if end == begin + count else None,
                    first=source.first, source_window=source.window, target_window=target.window,
                    window_first=source.window_first, prompt_tokens=tokens,
                )
            )  # fmt: skip
        for _ in range(CHUNKS):
            event = self.events.get(timeout=20)
            assert isinstance(event, WriteDone), event
            self.lanes.settled(event)
        state, landed = unpack(self.their_rows.read(0), key)
        assert state is RowState.RIGHT
        assert landed is not None
        assert len(landed.sums) == CHUNKS
        whole = theirs.part(begin, begin + count)
        return self.verifier.difference(whole, landed.sums, tokens), struck - self.struck


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.lanes.forget(D0)
    made.sender.close()
    made.receiver.close()


def test_corruption_of_any_chunk_is_caught(bench: Bench, tell: Callable[[str], None]) -> None:
    caught, chunks = 0, set()
    for number in range(ROUNDS):
        _, copies = bench.room(RoomKey(2 * number + 1, 1), 0)
        struck = 1 + bench.random.randrange(copies)
        said, _ = bench.room(RoomKey(2 * number + 2, 1), struck)
        caught += said.startswith("pages ") and "prefill's sum" in said and ", ours " in said
        chunks.add(said.split(" ")[1])
    tell(f"corruption caught, {bench.kind}: {caught} of {ROUNDS}, in {len(chunks)} chunks")
    assert caught == ROUNDS
    assert len(chunks) == CHUNKS


def test_what_arrives_as_it_was_sent_is_never_refused(bench: Bench) -> None:
    for number in range(1, 31):
        assert bench.room(RoomKey(number, 1), 0)[0] == ""

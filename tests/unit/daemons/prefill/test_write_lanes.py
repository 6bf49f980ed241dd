from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Literal

import msgspec
import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.progress import Progress
from daemons.kv.stretch import Stretch
from daemons.kv.window import Windows
from daemons.kv.window_pool import WindowPool
from daemons.prefill.chunk_sums import ChunkSums
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone, WriteFailed, WriteSkipped
from daemons.prefill.peer_lane import QUANTUM_BYTES, Task
from daemons.prefill.write_lanes import GROUP_BYTES, Source, WriteLanes
from daemons.protocol.generate import TokenOut
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES, Row, RowState, pack, unpack
from daemons.protocol.topology import Fingerprint
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import Copy, CopyTable, PeerGone, Region, WriteCut
from daemons.transfer.itinerary import Itinerary, Part
from daemons.transfer.plan import Pairing
from daemons.transfer.slices import cut
from daemons.transfer.sums import PageSums

PAGES, PAGE_BYTES = 4, 64
D0, D1 = PeerId("d0", 3), PeerId("d1", 4)
KEY = RoomKey(9, 1)


@dataclass
class Memory:
    """Pages of one head, with their address."""

    held: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, PAGES * PAGE_BYTES))

    @property
    def region(self) -> KvRegion:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.held))
        return KvRegion(address, PAGE_BYTES, 0, 0, 0)

    @property
    def layered(self) -> list[KvRegion]:
        """The same as two layers of two pages each."""
        size = PAGES // 2 * PAGE_BYTES
        return [self.region, KvRegion(self.region.address + size, PAGE_BYTES, 1, 0, 0)]


@dataclass
class CopyingBackend:
    """Copies inside this process; a frozen peer waits for the gate."""

    session: str = "here"
    transport: str = "memmove"
    gate: threading.Event | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    trouble: Exception | None = None
    writes: list[int] = field(default_factory=list)

    def transport_to(self, peer: str) -> str:
        return ""

    def register(self, regions: Sequence[Region]) -> None: ...

    def write(self, peer: str, copies: Sequence[Copy]) -> None:
        self.begun.set()
        if peer == "frozen" and self.gate is not None:
            self.gate.wait(20)
        if self.trouble is not None:
            raise self.trouble
        self.writes.append(len(copies))
        for copy in copies:
            ctypes.memmove(copy.target, copy.source, copy.bytes)

    def close(self) -> None: ...


@dataclass
class Bench:
    backend: CopyingBackend = field(default_factory=CopyingBackend)
    ours: Memory = field(default_factory=Memory)
    theirs: Memory = field(default_factory=Memory)
    rows: RowMemory = field(default_factory=lambda: RowMemory(2))
    their_rows: RowMemory = field(default_factory=lambda: RowMemory(2))
    progress: Progress = field(default_factory=lambda: Progress(1))
    events: SimpleQueue[object] = field(default_factory=SimpleQueue)
    wrote: list[int] = field(default_factory=list)
    checksum: Literal["off", "all"] = "off"

    def lanes(self) -> WriteLanes:
        sums = ChunkSums(PageSums([self.ours.region], PAGES), self.checksum)
        source = Source([self.ours.region], PAGES, self.rows, self.progress, sums)
        return WriteLanes(
            self.backend, source, self.events.put, lambda sent, _: self.wrote.append(sent)
        )

    def buffers(self, peer: PeerId, session: str = "here") -> RegisterBuffers:
        return RegisterBuffers(
            sender=peer,
            to_epoch=1,
            reply_host="127.0.0.1",
            reply_port=1,
            session=session,
            fingerprint=Fingerprint("m", "fp32", 16, 1, 1, 1),
            pages=PAGES,
            regions=(self.theirs.region,),
            rows_address=self.their_rows.address,
            row_bytes=ROW_BYTES,
            rows=2,
        )

    def event(self) -> object:
        return self.events.get(timeout=20)


ROW = Row(KEY, TokenOut(5))
LAST = WriteKV(KEY, D0, (0, 2), (3, 1), pack(ROW), source_row=1, target_row=0)


def test_pages_and_then_the_row_arrive_at_their_places() -> None:
    bench = Bench()
    bench.ours.held[:] = bytes(range(256))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    assert lanes.write(LAST) is None
    assert bench.event() == WriteDone(KEY, 2 * PAGE_BYTES + ROW_BYTES)
    assert bench.theirs.held[3 * PAGE_BYTES :] == bytes(range(64))
    assert bench.theirs.held[PAGE_BYTES : 2 * PAGE_BYTES] == bytes(range(128, 192))
    assert bench.theirs.held[:PAGE_BYTES] == bytes(PAGE_BYTES)
    assert unpack(bench.their_rows.read(0), KEY) == (RowState.RIGHT, ROW)
    assert bench.backend.writes == [2, 1]
    assert bench.wrote == [2 * PAGE_BYTES, ROW_BYTES]


def test_the_row_brings_the_sums_of_all_chunks_and_what_has_landed_has_them() -> None:
    bench = Bench(checksum="all")
    bench.ours.held[:] = bytes(range(256))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(WriteKV(KEY, D0, (1,), (0,)))
    lanes.write(replace(LAST, first=1))
    assert [type(bench.event()) for _ in range(2)] == [WriteDone, WriteDone]
    state, row = unpack(bench.their_rows.read(0), KEY)
    assert state is RowState.RIGHT
    assert row is not None
    assert [(one.first, one.pages) for one in row.sums] == [(0, 1), (1, 2)]
    there = PageSums([bench.theirs.region], PAGES)
    assert there.difference(Stretch(0, (0, 3, 1)), row.sums) == ""
    bench.theirs.held[3 * PAGE_BYTES + 5] ^= 1
    assert "pages 1 to 2 of 3: prefill's sum" in there.difference(Stretch(0, (0, 3, 1)), row.sums)


def test_a_cut_that_is_settled_leaves_nothing_to_land() -> None:
    bench = Bench(CopyingBackend(trouble=WriteCut("gone", settled=True)))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(LAST)
    assert bench.event() == WriteFailed(KEY, cut=False, detail="cut: gone")


def test_a_write_to_a_decode_that_never_registered_is_skipped_at_once() -> None:
    assert Bench().lanes().write(LAST) == WriteSkipped(KEY)


@pytest.mark.parametrize(
    ("trouble", "cut"),
    [
        (PeerGone("refused"), False),
        (OperatorError("no ports are left"), False),
        (WriteCut("reset"), True),
    ],
)
def test_a_failed_write_says_whether_bytes_may_still_land(trouble: Exception, cut: bool) -> None:  # noqa: FBT001
    bench = Bench(CopyingBackend(trouble=trouble))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(LAST)
    event = bench.event()
    assert isinstance(event, WriteFailed)
    assert event.cut is cut
    assert str(trouble) in event.detail


def test_a_page_outside_of_the_pool_is_refused_before_anything_is_sent() -> None:
    bench = Bench()
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(WriteKV(KEY, D0, (0,), (PAGES,)))
    event = bench.event()
    assert isinstance(event, WriteFailed)
    assert not event.cut
    assert bench.backend.writes == []


def test_an_unknown_trouble_counts_as_cut() -> None:
    bench = Bench(CopyingBackend(trouble=RuntimeError("what?")))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(LAST)
    assert bench.event() == WriteFailed(KEY, cut=True, detail="RuntimeError: what?")


def test_a_frozen_decode_holds_up_nobody_else_and_its_waiting_writes_can_be_called_off() -> None:
    gate = threading.Event()
    bench = Bench(CopyingBackend(gate=gate))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0, "frozen"))
    lanes.learn(D1, bench.buffers(D1))
    first, second = RoomKey(1, 1), RoomKey(2, 1)
    lanes.write(WriteKV(first, D0, (0,), (0,)))
    lanes.write(WriteKV(second, D0, (1,), (1,)))
    lanes.write(WriteKV(KEY, D1, (2,), (2,)))
    assert bench.event() == WriteDone(KEY, PAGE_BYTES)
    lanes.call_off(second)
    gate.set()
    ends = [bench.event(), bench.event()]
    assert ends == [WriteDone(first, PAGE_BYTES), WriteSkipped(second)]
    for end in ends:
        lanes.settled(end)
    lanes.write(WriteKV(second, D0, (1,), (1,)))  # the room's number may be used again
    assert bench.event() == WriteDone(second, PAGE_BYTES)


def test_a_forgotten_decode_is_written_to_no_more() -> None:
    bench = Bench()
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.forget(D0)
    assert lanes.write(LAST) == WriteSkipped(KEY)


def test_a_write_that_is_skipped_at_once_leaves_those_before_it_called_off() -> None:
    gate = threading.Event()
    bench = Bench(CopyingBackend(gate=gate))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0, "frozen"))
    lanes.write(WriteKV(RoomKey(1, 1), D0, (0,), (0,)))
    assert bench.backend.begun.wait(20)
    lanes.write(WriteKV(KEY, D0, (1,), (1,)))
    lanes.forget(D0)
    lanes.call_off(KEY)
    lanes.settled(lanes.write(LAST))
    gate.set()
    assert [bench.event(), bench.event()] == [
        WriteDone(RoomKey(1, 1), PAGE_BYTES),
        WriteSkipped(KEY),
    ]


# --- layer by layer ---


@dataclass
class Layers:
    """Two layers of two pages; every layer is worth a write, as with large pages."""

    bench: Bench = field(default_factory=lambda: Bench(progress=Progress(2)))

    def lanes(self, monkeypatch: pytest.MonkeyPatch) -> WriteLanes:
        monkeypatch.setattr("daemons.prefill.write_lanes.GROUP_BYTES", 1)
        bench = self.bench
        source = Source(bench.ours.layered, 2, bench.rows, bench.progress, unsummed())
        lanes = WriteLanes(bench.backend, source, bench.events.put, lambda sent, _: None)
        for peer in (D0, D1):
            buffers = msgspec.structs.replace(
                bench.buffers(peer), pages=2, regions=tuple(bench.theirs.layered)
            )
            lanes.learn(peer, buffers)
        return lanes

    def landed(self, layer: int) -> None:
        """Wait until both pages of a layer are there."""
        wanted, size = self.bench.ours.held, 2 * PAGE_BYTES
        part = slice(layer * size, (layer + 1) * size)
        assert within(20, lambda: self.bench.theirs.held[part] == wanted[part])


def unsummed() -> ChunkSums:
    return ChunkSums(PageSums([], 1), "off")


def within(limit_s: float, is_so: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.001)
    return True


FOLLOWS = WriteKV(KEY, D0, (0, 1), (0, 1), step=7)


def test_a_write_that_follows_a_forward_sends_each_layer_as_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    bench.progress.begin(7)
    lanes.write(FOLLOWS)
    bench.ours.held[: 2 * PAGE_BYTES] = bytes(range(1, 129))
    bench.progress.reach(0)
    layers.landed(0)
    assert bench.events.empty()
    assert bench.theirs.held[2 * PAGE_BYTES :] == bytes(2 * PAGE_BYTES)
    bench.ours.held[2 * PAGE_BYTES :] = bytes(range(128, 256))
    bench.progress.reach(1)
    bench.progress.end(7)
    event = bench.event()
    assert isinstance(event, WriteDone)
    assert event.sent_bytes == 4 * PAGE_BYTES
    assert event.early_bytes in (2 * PAGE_BYTES, 4 * PAGE_BYTES)  # by how the threads ran
    layers.landed(1)
    assert bench.backend.writes == [1, 1]


def test_layers_that_are_done_together_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    bench.progress.end(7)
    lanes.write(FOLLOWS)
    assert bench.event() == WriteDone(KEY, 4 * PAGE_BYTES)
    assert bench.backend.writes == [2]


def test_a_write_is_planned_while_its_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    bench.ours.held[:] = bytes(range(256))
    bench.progress.begin(7)
    lanes.write(FOLLOWS)
    (task,) = lanes._ways[D0]._tasks
    assert within(20, lambda: task.itinerary is not None)
    assert bench.backend.writes == []
    for name in ("runs", "copies"):
        monkeypatch.setattr(Pairing, name, None)  # from here on nothing is planned
    bench.progress.end(7)
    assert bench.event() == WriteDone(KEY, 4 * PAGE_BYTES)
    assert bench.theirs.held[:] == bytes(range(256))


def test_each_group_of_layers_is_planned_before_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    expected: list[range] = []
    real = Itinerary.expect

    def expect(itinerary: Itinerary, some: range) -> None:
        real(itinerary, some)
        expected.append(some)

    monkeypatch.setattr(Itinerary, "expect", expect)
    bench.ours.held[:] = bytes(range(256))
    bench.progress.begin(7)
    lanes.write(FOLLOWS)
    assert within(20, lambda: expected == [range(1)])
    monkeypatch.setattr(Part, "copies", None)  # what was expected needs it no more
    bench.progress.reach(0)
    layers.landed(0)
    assert bench.events.empty()
    monkeypatch.undo()
    bench.progress.end(7)
    event = bench.event()
    assert isinstance(event, WriteDone)
    assert event.sent_bytes == 4 * PAGE_BYTES


def test_what_cannot_be_planned_fails_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    bench.progress.begin(7)
    lanes.write(replace(FOLLOWS, target_pages=(0, 2)))
    (task,) = lanes._ways[D0]._tasks
    assert within(20, lambda: task.is_prepared)
    bench.progress.end(7)
    event = bench.event()
    assert isinstance(event, WriteFailed)
    assert not event.cut
    assert "target page 2 is outside" in event.detail


def test_small_layers_wait_for_each_other() -> None:
    bench = Bench(progress=Progress(2))
    source = Source(bench.ours.layered, 2, bench.rows, bench.progress, unsummed())
    lanes = WriteLanes(bench.backend, source, bench.events.put, lambda sent, _: None)
    task = Task(FOLLOWS)
    assert 2 * PAGE_BYTES < GROUP_BYTES
    bench.progress.begin(7)
    bench.progress.reach(0)
    assert not lanes._is_ready(task)
    bench.progress.reach(1)
    assert lanes._is_ready(task)


def test_nothing_of_a_broken_forward_is_sent_after_what_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    bench.progress.begin(7)
    lanes.write(FOLLOWS)
    bench.ours.held[:] = bytes(range(256))
    bench.progress.reach(0)
    layers.landed(0)
    bench.progress.broke(7)
    assert bench.event() == WriteSkipped(KEY)
    assert bench.theirs.held[2 * PAGE_BYTES :] == bytes(2 * PAGE_BYTES)


def test_a_write_that_follows_a_forward_can_be_called_off_between_two_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    bench.progress.begin(7)
    lanes.write(FOLLOWS)
    lanes.call_off(KEY)
    assert bench.event() == WriteSkipped(KEY)
    bench.progress.reach(0)
    assert bench.backend.writes == []


def test_a_room_whose_forward_goes_on_delays_no_other_room_of_the_same_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = Layers()
    bench, lanes = layers.bench, layers.lanes(monkeypatch)
    lanes.write(FOLLOWS)
    lanes.write(WriteKV(KEY, D0, (), (), pack(ROW)))  # its row waits for its pages
    other = RoomKey(10, 1)
    lanes.write(WriteKV(other, D0, (1,), (1,)))
    assert bench.event() == WriteDone(other, 2 * PAGE_BYTES)
    bench.progress.end(7)
    assert bench.event() == WriteDone(KEY, 4 * PAGE_BYTES)
    assert bench.event() == WriteDone(KEY, ROW_BYTES)


def test_a_long_write_goes_in_slices_and_can_be_called_off_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daemons.prefill.write_lanes.QUANTUM_BYTES", 2 * PAGE_BYTES)
    gate = threading.Event()
    bench = Bench(CopyingBackend(gate=gate))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0, "frozen"))
    bench.ours.held[:] = bytes(range(256))
    lanes.write(WriteKV(KEY, D0, (0, 1, 2, 3), (0, 1, 2, 3)))
    assert bench.backend.begun.wait(20)
    lanes.call_off(KEY)
    gate.set()
    assert bench.event() == WriteSkipped(KEY)
    assert bench.theirs.held[: 2 * PAGE_BYTES] == bytes(range(128))
    assert bench.theirs.held[2 * PAGE_BYTES :] == bytes(128)


def test_what_went_over_the_wire_is_counted_by_peer() -> None:
    bench = Bench()
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(WriteKV(KEY, D0, (0, 1, 3), (0, 1, 2)))
    bench.event()
    wire = lanes.tally.wires()["d0"]
    assert (wire.bytes, wire.copies, wire.unmerged, wire.failed) == (3 * PAGE_BYTES, 2, 3, 0)
    assert sum(wire.queued.counts) == 1
    assert sum(wire.writing.counts) == 1


@pytest.mark.parametrize(("served_s", "waited_s"), [(60.0, 50), (20.0, 20)])
def test_a_write_has_waited_since_its_forward_ended_however_late_the_lane_has_looked(
    monkeypatch: pytest.MonkeyPatch, served_s: float, waited_s: int
) -> None:
    bench, now_s = Bench(), time.monotonic()
    lanes = bench.lanes()
    monkeypatch.setattr("daemons.engine.progress.monotonic", lambda: now_s - 50)
    bench.progress.begin(7)
    bench.progress.end(7)
    lanes._begin_waiting(Task(FOLLOWS, ready_s=now_s, served_s=now_s - served_s))
    assert lanes.tally.wires()["d0"].queued.sum_s // 10 * 10 == waited_s


def test_of_a_layer_with_a_window_only_what_is_seen_later_is_sent() -> None:
    bench = Bench(progress=Progress(2))
    source = Source(
        bench.ours.layered,
        2,
        bench.rows,
        bench.progress,
        unsummed(),
        window=WindowPool(Windows(16, (None, 10))),
    )
    lanes = WriteLanes(bench.backend, source, bench.events.put, lambda sent, _: None)
    regions = tuple(bench.theirs.layered)
    lanes.learn(D0, msgspec.structs.replace(bench.buffers(D0), pages=2, regions=regions))
    bench.ours.held[:] = bytes(range(256))
    lanes.write(WriteKV(KEY, D0, (0, 1), (0, 1), prompt_tokens=32))
    assert bench.event() == WriteDone(KEY, 3 * PAGE_BYTES)
    assert bench.theirs.held[: 2 * PAGE_BYTES] == bytes(range(128))
    assert bench.theirs.held[2 * PAGE_BYTES :] == bytes(PAGE_BYTES) + bytes(range(192, 256))
    assert len(bench.backend.writes) == 1


def test_layers_with_a_window_are_sent_from_and_to_pages_of_their_own() -> None:
    bench = Bench(progress=Progress(2))
    ours, theirs = bench.ours.layered, bench.theirs.layered
    window = WindowPool(Windows(16, (None, 10)), 2)
    source = Source(ours, 2, bench.rows, bench.progress, unsummed(), window=window)
    lanes = WriteLanes(bench.backend, source, bench.events.put, lambda sent, _: None)
    buffers = bench.buffers(D0)
    lanes.learn(D0, msgspec.structs.replace(buffers, regions=tuple(theirs), window_pages=1))
    bench.ours.held[:] = bytes(range(256))
    write = WriteKV(KEY, D0, (0, 1), (1, 0), prompt_tokens=32)
    own = {"source_window": (1,), "target_window": (0,), "window_first": 1}
    lanes.write(replace(write, **own))
    assert bench.event() == WriteDone(KEY, 3 * PAGE_BYTES)
    assert bench.theirs.held[:PAGE_BYTES] == bytes(range(64, 128))
    assert bench.theirs.held[PAGE_BYTES : 2 * PAGE_BYTES] == bytes(range(64))
    assert bench.theirs.held[2 * PAGE_BYTES : 3 * PAGE_BYTES] == bytes(range(192, 256))
    lanes.write(replace(write, **own | {"target_window": (1,)}))
    failed = bench.event()
    assert isinstance(failed, WriteFailed)
    assert "target page 1 is outside a pool of 1 pages" in failed.detail


def test_pages_that_no_layer_needs_are_not_sent_at_all() -> None:
    bench = Bench(progress=Progress(1))
    source = Source(
        [bench.ours.region],
        PAGES,
        bench.rows,
        bench.progress,
        unsummed(),
        window=WindowPool(Windows(16, (10,))),
    )
    lanes = WriteLanes(bench.backend, source, bench.events.put, lambda sent, _: None)
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(WriteKV(KEY, D0, (0, 1), (0, 1), first=1, prompt_tokens=64))
    assert bench.event() == WriteDone(KEY, 0)
    assert bench.backend.writes == []


def test_after_a_write_that_failed_the_next_of_its_room_does_not_begin() -> None:
    bench = Bench(CopyingBackend(trouble=WriteCut("reset"), gate=threading.Event()))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0, "frozen"))
    lanes.write(WriteKV(KEY, D0, (0,), (0,)))
    lanes.write(WriteKV(KEY, D0, (1,), (1,)))
    assert bench.backend.gate is not None
    bench.backend.gate.set()
    events = [bench.event(), bench.event()]
    assert [type(event) for event in events] == [WriteFailed, WriteSkipped]
    bench.backend.trouble = None
    for event in events:
        lanes.settled(event)
    lanes.write(WriteKV(KEY, D0, (1,), (1,)))
    assert bench.event() == WriteDone(KEY, PAGE_BYTES)


@pytest.mark.parametrize("trouble", [RuntimeError("what?"), ValueError("-7 is not a valid Sent")])
def test_after_a_trouble_that_nobody_foresaw_the_row_does_not_go(trouble: Exception) -> None:
    bench = Bench(CopyingBackend(trouble=trouble))
    lanes = bench.lanes()
    lanes.learn(D0, bench.buffers(D0))
    lanes.write(WriteKV(KEY, D0, (0,), (0,)))
    failed = bench.event()  # the core has not heard of it yet: the row is asked for
    bench.backend.trouble = None
    lanes.write(WriteKV(KEY, D0, (), (), pack(ROW)))
    assert [failed, bench.event()] == [
        WriteFailed(KEY, cut=True, detail=f"{type(trouble).__name__}: {trouble}"),
        WriteSkipped(KEY),
    ]
    assert unpack(bench.their_rows.read(0), KEY)[0] is not RowState.RIGHT
    assert lanes.tally.wires()["d0"].failed == 1


def test_lanes_that_begin_together_do_not_each_take_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daemons.prefill.in_flight.SMALL_BYTES", PAGE_BYTES)
    bench, both = Bench(), threading.Barrier(2)
    first_time, under_way = threading.local(), []

    def cut_together(copies: CopyTable, most_bytes: int) -> list[CopyTable]:
        if most_bytes < QUANTUM_BYTES and not hasattr(first_time, "cut"):
            first_time.cut = True
            both.wait(20)
        return cut(copies, most_bytes)

    def write_together(peer: str, copies: Sequence[Copy]) -> None:
        if not hasattr(first_time, "write"):
            first_time.write = True
            both.wait(20)
            under_way.append(lanes._in_flight.bytes)
            both.wait(20)

    monkeypatch.setattr("daemons.prefill.write_lanes.cut", cut_together)
    total_bytes = 3 * PAGE_BYTES
    source = Source([bench.ours.region], PAGES, bench.rows, bench.progress, unsummed(), total_bytes)
    monkeypatch.setattr(bench.backend, "write", write_together)
    lanes = WriteLanes(bench.backend, source, bench.events.put, lambda sent, _: None)
    for peer in (D0, D1):
        lanes.learn(peer, bench.buffers(peer))
        lanes.write(WriteKV(RoomKey(peer.epoch, 1), peer, (0, 1, 2, 3), (0, 1, 2, 3)))
    assert [type(bench.event()) for _ in range(2)] == [WriteDone, WriteDone]
    assert max(under_way) <= total_bytes + PAGE_BYTES
    assert lanes._in_flight.bytes == 0

"""Cross-memory writes: which copies go into one call, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.cluster.errors import OperatorError
from daemons.kv.shareable import shareable
from daemons.transfer import cma, notice, other_memory
from daemons.transfer.backend import (
    BadCopy,
    Comb,
    Copy,
    CopyTable,
    PeerGone,
    Region,
    WriteCut,
    table,
)
from daemons.transfer.cma import Cma
from daemons.transfer.config import TransferConfig
from daemons.transfer.native.mover import Moved
from tests.support.native import copier


def copies(lengths: list[int]) -> CopyTable:
    zeros = np.ones(len(lengths), dtype=np.int64)
    return CopyTable(zeros, zeros, np.array(lengths, dtype=np.int64))


@given(st.lists(st.integers(1, 30), max_size=40))
def test_calls_hold_every_copy_once_and_stay_within_their_limits(lengths: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cma, "CALL_BYTES", 50)
        patch.setattr(cma, "SPANS", 7)
        found = cma.calls(copies(lengths))
    assert [i for begin, end in found for i in range(begin, end)] == list(range(len(lengths)))
    for begin, end in found:
        assert end - begin <= 7
        assert sum(lengths[begin:end]) <= 50


def test_a_longer_copy_is_a_call_of_its_own() -> None:
    most = other_memory.CALL_BYTES
    assert cma.calls(copies([1, 2 * most, 1])) == [(0, 1), (1, 2), (2, 3)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_after_a_short_call_the_rest_is_what_was_not_moved(
    lengths: list[int], data: st.DataObject
) -> None:
    moved = data.draw(st.integers(0, sum(lengths)))
    starts = [1000 * i for i in range(len(lengths))]
    spans = np.array(list(zip(starts, lengths, strict=True)), dtype=np.uint64)
    left = cma._rest(spans, moved)
    every = [start + i for start, n in zip(starts, lengths, strict=True) for i in range(n)]
    assert [int(start) + i for start, n in left for i in range(int(n))] == every[moved:]


def made(way: str) -> Iterator[tuple[Cma, Cma]]:
    if way == "copier":
        copier()
    pair = Cma(), Cma()
    if way == "numpy":
        pair[0]._mover = None
    yield pair
    for one in pair:
        one.close()


@pytest.fixture(params=["copier", "numpy"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Cma, Cma]]:
    """Two sessions, the first of which writes by the compiled copier, or without it."""
    yield from made(request.param)


@pytest.fixture
def compiled() -> Iterator[tuple[Cma, Cma]]:
    """The same, with the copier."""
    yield from made("copier")


@pytest.fixture
def plain() -> Iterator[tuple[Cma, Cma]]:
    """The same, without the copier."""
    yield from made("numpy")


def memory(length: int) -> tuple[np.ndarray, Region]:
    array = np.ones(length, dtype=np.uint8)
    return array, Region(array.ctypes.data, length)


def test_memory_that_the_peer_did_not_register_is_never_written(pair: tuple[Cma, Cma]) -> None:
    sender, receiver = pair
    source, ours = memory(4096)
    target, theirs = memory(8192)
    sender.register([ours])
    receiver.register([Region(theirs.address, 4096)])
    source[:] = 7
    good = Copy(ours.address, theirs.address, 16)
    for start in (4081, 4096, 8191):
        with pytest.raises(WriteCut, match="outside the peer's memory") as cut:
            sender.write(receiver.session, [good, Copy(ours.address, theirs.address + start, 16)])
        assert cut.value.settled
    assert not (target == 7).any()
    sender.write(receiver.session, [Copy(ours.address, theirs.address + 4080, 16)])
    assert (target == 7).sum() == 16


def test_a_stray_among_mapped_copies_is_refused_before_any(pair: tuple[Cma, Cma]) -> None:
    sender, receiver = pair
    _source, target, copies = paired(pair, 1 << 16)
    last = copies[-1]
    with pytest.raises(WriteCut, match="outside the peer's memory"):
        sender.write(receiver.session, [*copies, last._replace(target=last.target + (1 << 16))])
    with pytest.raises(BadCopy, match="outside registered memory"):
        sender.write(
            receiver.session, table([*copies, last._replace(source=last.source + (1 << 16))])
        )
    assert not target.any()


@pytest.mark.parametrize("place", [0, 1 << 63, 1 << 70, -1])
def test_a_comb_at_what_no_address_is_reaches_nobody(pair: tuple[Cma, Cma], place: int) -> None:
    sender, receiver = pair
    _source, target, copies = paired(pair, 1 << 16)
    good = Comb(*copies[0], 1)
    for bad in (good._replace(target=place), good._replace(source=place)):
        with pytest.raises((BadCopy, WriteCut, OverflowError)):
            sender.write(receiver.session, CopyTable.of([good, bad]))
    assert not target.any()


def test_memory_that_came_mapped_between_two_writes_is_written_without_the_kernel(
    pair: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = pair
    _source, _target, copies = paired(pair, 1 << 16)
    sender.write(receiver.session, copies)
    target, theirs = shared(1 << 16)
    receiver.register([theirs])
    monkeypatch.setattr(other_memory, "write", None)
    sender.write(receiver.session, [copies[1]._replace(target=theirs.address)])
    assert target[: cma.LEAST_BYTES].any()


def test_a_peer_that_shows_more_while_it_is_written_to_gets_everything(
    compiled: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = compiled
    assert sender._mover is not None
    source, target, copies = paired(compiled, 1 << 16)
    real, answers = sender._mover.move, []
    _more, more = shared(4096)

    def growing(*args: Any) -> int:
        if not answers:
            receiver.register([more])
        answers.append(real(*args))
        return Moved.CHANGED if len(answers) == 1 else answers[-1]

    sender.write(receiver.session, copies)
    monkeypatch.setattr(sender._mover, "move", growing)
    target[:] = 0
    sender.write(receiver.session, copies)
    assert answers == [Moved.UNLIKE, Moved.DONE]
    assert np.array_equal(target[: cma.LEAST_BYTES], source[: cma.LEAST_BYTES])


def test_close_waits_for_a_write_that_is_under_way(
    compiled: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = compiled
    assert sender._mover is not None
    _source, _target, copies = paired(compiled, 1 << 16)
    real, begun, go_on = sender._mover.move, threading.Event(), threading.Event()

    def slow(*args: Any) -> int:
        begun.set()
        go_on.wait(20)
        return real(*args)

    monkeypatch.setattr(sender._mover, "move", slow)
    wait_for, waiting = sender._lock.wait_for, threading.Event()
    monkeypatch.setattr(sender._lock, "wait_for", lambda is_so: (waiting.set(), wait_for(is_so)))
    ends: list[str] = []

    def write() -> None:
        try:
            sender.write(receiver.session, copies)
        except WriteCut as cut:
            ends.append(str(cut))

    writer, closer = threading.Thread(target=write), threading.Thread(target=sender.close)
    writer.start()
    assert begun.wait(20)
    closer.start()
    assert waiting.wait(20)
    with sender._lock:  # which a closer that waits has let go of
        assert closer.is_alive()
    go_on.set()
    writer.join(20)
    closer.join(20)
    assert not closer.is_alive()
    assert sender._writing == 0
    assert "closed here" in ends[0]


@pytest.mark.parametrize("answer", [Moved.CHANGED, Moved.CLOSED])
def test_a_write_that_the_copier_broke_off_is_a_settled_cut(
    compiled: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch, answer: Moved
) -> None:
    sender, receiver = compiled
    assert sender._mover is not None
    _source, _target, copies = paired(compiled, 1 << 16)
    sender.write(receiver.session, copies)

    def closing(*args: Any) -> int:
        if answer is Moved.CHANGED:
            receiver.close()
        else:
            sender._end.value = 1
        return answer

    monkeypatch.setattr(sender._mover, "move", closing)
    words = {Moved.CHANGED: "has closed", Moved.CLOSED: "closed here"}
    with pytest.raises(WriteCut, match=words[answer]) as cut:
        sender.write(receiver.session, copies)
    assert cut.value.settled
    sender._end.value = 0


@pytest.mark.parametrize("answer", [None, Moved.CHANGED])
def test_a_peer_that_shows_something_new_each_time_holds_nobody_up(
    compiled: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch, answer: Moved | None
) -> None:
    sender, receiver = compiled
    assert sender._mover is not None
    source, target, copies = paired(compiled, 1 << 16)
    real, extra = sender._mover.move, []

    def busy(*args: Any) -> int:
        extra.append(memory(64))
        assert len(extra) < 50, "it is tried for ever"
        receiver.register([extra[-1][1]])
        moved = real(*args)
        assert moved == Moved.UNLIKE
        return moved if answer is None else answer

    sender.write(receiver.session, copies)
    target[:] = 0
    monkeypatch.setattr(sender._mover, "move", busy)
    sender.write(receiver.session, copies)
    rows = target.reshape(-1, 2, cma.LEAST_BYTES)
    assert np.array_equal(rows[:, 0], source.reshape(rows.shape)[:, 0])


def test_a_peer_that_closes_after_some_was_written_is_a_cut_and_not_gone(
    compiled: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = compiled
    assert sender._mover is not None
    _source, _target, copies = paired(compiled, 1 << 16)
    sender.write(receiver.session, copies)
    answers = [Moved.CHANGED, Moved.UNLIKE]

    def changing(*args: Any) -> int:
        if len(answers) == 1:
            receiver.close()
        return answers.pop(0)

    monkeypatch.setattr(sender._mover, "move", changing)
    with pytest.raises(WriteCut, match="has closed") as cut:
        sender.write(receiver.session, copies)
    assert cut.value.settled


def test_what_is_registered_later_can_be_written_later(pair: tuple[Cma, Cma]) -> None:
    sender, receiver = pair
    (_, ours), (first, one), (second, other) = memory(64), memory(64), memory(64)
    sender.register([ours])
    receiver.register([one])
    sender.write(receiver.session, [Copy(ours.address, one.address, 64)])
    receiver.register([other])
    second[:] = 0
    sender.write(receiver.session, [Copy(ours.address, other.address, 64)])
    assert first.all()
    assert second.all()


def test_memory_that_vanished_under_a_write_is_a_settled_cut(pair: tuple[Cma, Cma]) -> None:
    sender, receiver = pair
    source, ours = memory(64)
    sender.register([ours])
    receiver._notice.show([(Region(4096, 4096), None)])  # nothing is mapped there
    with pytest.raises(WriteCut, match="Bad address") as cut:
        sender.write(receiver.session, [Copy(ours.address, 4096, 64)])
    assert cut.value.settled
    assert source.all()


def test_memory_that_is_not_the_hosts_is_refused() -> None:
    backend = Cma()
    with pytest.raises(OperatorError, match="not the host's"):
        backend.register([Region(4096, 4096)])
    backend.close()


def test_a_peer_is_asked_whether_it_can_be_reached(pair: tuple[Cma, Cma]) -> None:
    sender, receiver = pair
    _, ours = memory(64)
    sender.register([ours])
    assert sender.trouble(receiver.session) == ""
    assert sender.trouble(f"mooncake=127.0.0.1:1,cma={receiver.session}") == ""
    assert "offers none" in sender.trouble("127.0.0.1:15001")
    assert "offers none" in sender.trouble(receiver.session.replace("cma2:", "cma3:"))
    assert "offers none" in sender.trouble("mooncake=127.0.0.1:15001")
    words = receiver.session.split(":")
    with pytest.raises(PeerGone, match="is not there"):
        sender.trouble(":".join([*words[:2], str(2**30), *words[3:]]))
    with pytest.raises(PeerGone, match="another one now"):
        sender.trouble(":".join([*words[:3], "1", *words[4:]]))
    assert "another host" in sender.trouble(":".join([words[0], "elsewhere", *words[2:]]))
    receiver.close()
    assert "closed" in sender.trouble(receiver.session)
    with pytest.raises(PeerGone):
        sender._write(receiver.session, table([Copy(ours.address, 1, 1)]))


def test_create_proves_that_it_works_here() -> None:
    backend = cma.create(TransferConfig(backend="cma"), "")
    assert backend.transport == "shm or cma"
    backend.close()


def shared(length: int) -> tuple[np.ndarray, Region]:
    array = np.frombuffer(shareable(length), dtype=np.uint8)
    return array, Region(array.ctypes.data, length)


def paired(pair: tuple[Cma, Cma], length: int) -> tuple[np.ndarray, np.ndarray, list[Copy]]:
    """Register memory that can be mapped; the copies of pieces of it, and one between them."""
    (source, ours), (target, theirs) = shared(length), shared(length)
    pair[0].register([ours])
    pair[1].register([theirs])
    source[:] = np.arange(length) % 251
    piece, step = cma.LEAST_BYTES, 2 * cma.LEAST_BYTES
    starts = range(0, length, step)
    return source, target, [Copy(ours.address + a, theirs.address + a, piece) for a in starts]


def test_memory_in_a_file_is_written_without_the_kernel(
    pair: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = pair
    source, target, copies = paired(pair, 1 << 20)
    monkeypatch.setattr(other_memory, "write", None)
    if sender._mover is not None:
        monkeypatch.setattr(cma, "copy", None)
    sender.write(receiver.session, copies)
    rows = target.reshape(-1, 2, cma.LEAST_BYTES)
    assert np.array_equal(rows[:, 0], source.reshape(rows.shape)[:, 0])
    assert not rows[:, 1].any()
    assert sender.transport_to(receiver.session) == "shm"


def test_small_pieces_go_through_the_kernel_where_there_is_no_copier(
    pair: tuple[Cma, Cma],
) -> None:
    sender, receiver = pair
    source, target, copies = paired(pair, 1 << 16)
    draw = np.random.default_rng(1)
    starts = np.sort(draw.choice(1 << 12, 100, replace=False)) * 16
    small = [Copy(copies[0].source + a, copies[0].target + a, 16) for a in starts.tolist()]
    calls: list[int] = []
    real = other_memory.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other_memory, "write", lambda *args: calls.append(1) or real(*args))
        sender.write(receiver.session, small)
    assert bool(calls) == (sender._mover is None)
    assert all(np.array_equal(target[a : a + 16], source[a : a + 16]) for a in starts)


def refused(*_: object) -> bytes:
    raise PermissionError(1, "Operation not permitted")  # as under ptrace_scope or seccomp


def test_pieces_of_any_size_reach_a_pool_where_the_kernel_copies_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_memory, "read", refused)
    monkeypatch.setattr(other_memory, "write", refused)
    sender, receiver = Cma(), Cma()
    source, target, copies = paired((sender, receiver), 1 << 16)
    starts = [0, 48, 64, 4096, 65520]
    ours, theirs = copies[0].source, copies[0].target
    sender.write(receiver.session, [Copy(ours + a, theirs + a, 16) for a in starts])
    assert all(np.array_equal(target[a : a + 16], source[a : a + 16]) for a in starts)
    assert np.count_nonzero(target) <= 16 * len(starts)
    outside = [Copy(ours, theirs + (1 << 16) - 8, 16)]
    with pytest.raises(WriteCut, match="outside the peer's memory"):
        sender.write(receiver.session, outside)
    _, plain = memory(4096)
    with pytest.raises(OperatorError, match="process_vm_readv: Operation not permitted"):
        receiver.register([plain])
    for one in (sender, receiver):
        one.close()


def test_a_long_write_looks_again_after_each_part(
    plain: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = plain
    _source, target, copies = paired(plain, 1 << 20)
    monkeypatch.setattr(cma, "CALL_BYTES", 1 << 18)
    real = cma.copy

    def closing(comb: Comb) -> None:
        real(comb)
        receiver.close()

    monkeypatch.setattr(cma, "copy", closing)
    with pytest.raises(WriteCut, match="has closed") as cut:
        sender.write(receiver.session, copies)
    assert cut.value.settled
    assert target[: 1 << 19].any()
    assert not target[1 << 19 :].any()


def test_a_peer_that_ends_under_the_last_part_is_a_cut(
    plain: tuple[Cma, Cma], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = plain
    _source, _target, copies = paired(plain, 1 << 16)
    monkeypatch.setattr(cma, "copy", lambda comb: receiver.close())
    with pytest.raises(WriteCut, match="has closed"):
        sender.write(receiver.session, copies)


def test_a_system_without_shared_memory_has_no_cma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "share_of", lambda region: None)
    with pytest.raises(OperatorError, match="cannot be reached here"):
        cma.create(TransferConfig(backend="cma"), "")

from __future__ import annotations

import ctypes
import select
from types import SimpleNamespace
from typing import cast

import pytest

from daemons.decode.commands import ReadRow, VerifySums, ZeroRow
from daemons.decode.config import DecodeConfig
from daemons.decode.events import RowRead, SumsVerified
from daemons.decode.scheduler import Scheduler
from daemons.decode.service import Shell, buffers_of
from daemons.kv.stretch import Stretch
from daemons.kv.window import ALL_SEEN
from daemons.protocol.codec import decode, encode
from daemons.protocol.generate import TokenOut
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES, ChunkSum, Row, RowState, pack
from daemons.protocol.topology import Fingerprint
from daemons.rank.equipment import Equipment
from daemons.runtime.reactor import Wake
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.sums import PageSums

ME = PeerId("d0", 7)
KEY = RoomKey(9, 1)
REGION = KvRegion(4096, 64, 0, 0, 0)


def equipment() -> Equipment:
    engine = SimpleNamespace(
        windows=ALL_SEEN,
        window_pages=0,
        kv_regions=lambda: (REGION,),
        pages=4,
        fingerprint=Fingerprint("m", "fp32", 16, 1, 1, 1),
    )
    made = SimpleNamespace(
        me=ME,
        host="10.0.0.1",
        engine=engine,
        steps=engine,
        wake=Wake(),
        mailbox=SimpleNamespace(port=5000),
        backend=SimpleNamespace(session="10.0.0.1:15000"),
        rows=RowMemory(2),
        clock=lambda: 1.0,
    )
    return cast(Equipment, made)


def shell(has: Equipment) -> Shell:
    config = DecodeConfig(rows=2)
    return Shell(has, Scheduler(ME, config, buffers_of(has, config), 4))


def test_a_look_at_a_row_tells_empty_right_and_wrong_apart() -> None:
    has = equipment()
    made = shell(has)
    row = Row(KEY, TokenOut(5))
    assert made.execute(ReadRow(KEY, 1)) == RowRead(KEY, RowState.EMPTY, None)
    has.rows.write(1, pack(row))
    assert made.execute(ReadRow(KEY, 1)) == RowRead(KEY, RowState.RIGHT, row)
    assert made.execute(ReadRow(RoomKey(8, 1), 1)) == RowRead(RoomKey(8, 1), RowState.WRONG, None)
    made.execute(ZeroRow(1))
    assert made.execute(ReadRow(KEY, 1)) == RowRead(KEY, RowState.EMPTY, None)


def test_pages_that_have_landed_are_compared_in_a_lane() -> None:
    has = equipment()
    memory = (ctypes.c_ubyte * 256)()
    region = KvRegion(ctypes.addressof(memory), 64, 0, 0, 0)
    has.engine.kv_regions = lambda: (region,)  # type: ignore[method-assign]
    made = shell(has)
    right = ChunkSum(0, 2, PageSums([region], 4).of(Stretch(0, (3, 1))))
    said = []
    for one in (right, right._replace(sum=7)):
        assert made.execute(VerifySums(KEY, Stretch(0, (3, 1)), (one,), 0)) is None
        said.append(arrived(has.wake))
    assert said[0] == SumsVerified(KEY)
    assert isinstance(said[1], SumsVerified)
    assert f"prefill's sum {7:016x}, ours {right.sum:016x}" in said[1].wrong


def arrived(wake: Wake) -> object:
    ready, _, _ = select.select([wake.fd], [], [], 20)
    assert ready
    (event,) = wake.take()
    return event


def test_prefills_are_told_all_memory_that_they_may_write() -> None:
    has = equipment()
    buffers = buffers_of(has, DecodeConfig(rows=2))
    assert (buffers.reply_host, buffers.reply_port) == ("10.0.0.1", 5000)
    assert buffers.session == "10.0.0.1:15000"
    assert (buffers.rows_address, buffers.row_bytes, buffers.rows) == (
        has.rows.address,
        ROW_BYTES,
        2,
    )
    assert buffers.regions == (REGION,)
    assert decode(encode(buffers)) == buffers


def test_a_command_that_nobody_knows_is_our_own_defect() -> None:
    with pytest.raises(AssertionError, match="nobody carries out"):
        shell(equipment()).execute("dance")

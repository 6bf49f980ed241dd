"""Wrappers that let a rank fail on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from daemons.decode.deadlines import MARGIN_S
from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.engine.step import Item, Result, StepDone
from daemons.engine.step import Sequence as Room
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.window_pool import NO_POOL
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.causes import Cause
from daemons.protocol.chaos import Fault, FaultOrder
from daemons.protocol.generate import Ask, AskFor, Chaos, Output, Sampling, TokenOut
from daemons.protocol.handshake import Abort, Message
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.topology import Role
from daemons.rank.chaos import (
    JUNK_BYTES,
    TAKEN,
    ChaosBackend,
    ChaosCore,
    ChaosEngine,
    ChaosShell,
    Hooks,
    Mangled,
)
from daemons.rank.places import places_of
from daemons.runtime.commands import Send, SendHeartbeat, Tell
from daemons.runtime.events import Submitted, Tick
from daemons.runtime.faults import Faults, Injected
from daemons.transfer.backend import Copy, Region, WriteCut
from tests.support.checkpoints import EOS, checkpoint
from tests.support.cores import CANCELLED, TIMERS, P, causes, decode_core, prefill_core, submit
from tests.support.decode_scenes import heard, in_transfer

PEER = PeerId("p0", 9)
KEY = RoomKey(7, 1)
ENDED = Send(PEER, Abort(P, 9, 7, 1, CANCELLED))
OTHER = Send(PEER, Abort(P, 9, 8, 1, CANCELLED))


@dataclass
class Wire:
    """A backend, a mailbox and a shell that note what they are told."""

    session: str = "here"
    transport: str = "none"
    written: list[Sequence[Copy]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    registered: list[Region] = field(default_factory=list)

    def register(self, regions: Sequence[Region]) -> None:
        self.registered += regions

    def write(self, peer: str, copies: Sequence[Copy]) -> None:
        self.written.append(copies)

    def close(self) -> None:
        """Nothing."""

    def frame(self, peer: PeerId, message: Message) -> bytes:
        return bytes(8)

    def send_bytes(self, peer: PeerId, raw: bytes) -> bool:
        self.sent.append(raw)
        return True

    def execute(self, command: object) -> object | None:
        return command

    def observe(self, event: object) -> None:
        """Nothing."""

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        return {"status": {"counters": {"steps": 1.0}}}


@dataclass
class Echo:
    """A core that wants done whatever it is handed as an event."""

    busy: bool = False

    def handle(self, event: Any, now: float) -> list[object]:
        return [event] if not isinstance(event, Tick) else []


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(dtype="fp32", device="cpu", kv_tokens=64, page_size=16)
    return Engine.load(config, checkpoint("llama"))


@pytest.fixture
def faults() -> Iterator[Faults]:
    made = Faults()
    yield made
    made.clear()


def shell_of(core: PrefillCore | DecodeCore, faults: Faults) -> tuple[ChaosShell, Wire]:
    wire = Wire()
    return ChaosShell(wire, core, ChaosCore(core, faults), wire, faults), wire


def order(shell: ChaosShell, fault: Fault, **more: Any) -> dict[str, object]:
    return shell.answer(Chaos(1, FaultOrder(fault, **more)), 0.0)


def begun(engine: Engine, faults: Faults, role: Role = Role.DECODE) -> tuple[ChaosEngine, Item]:
    wrapped = ChaosEngine(engine, role, faults)
    wrapped.begin(Room(KEY, Sampling(temperature=0), (5, 6)))
    return wrapped, Item(KEY, (5, 6), 0, (0,), samples=True)


def test_an_engine_without_faults_is_as_it_was(engine: Engine, faults: Faults) -> None:
    wrapped, item = begun(engine, faults)
    (result,) = wrapped.forward([item])
    assert result.token is not None
    assert not result.error
    wrapped.end(KEY)


def test_a_room_may_be_ended_refused_or_the_whole_forward_broken(
    engine: Engine, faults: Faults
) -> None:
    wrapped, item = begun(engine, faults)
    faults.arm(FaultOrder(Fault.ENGINE_EOS))
    assert wrapped.forward([item])[0].token == TokenOut(EOS)
    faults.arm(FaultOrder(Fault.ENGINE_REJECT))
    assert "engine.reject" in wrapped.forward([item])[0].error
    faults.arm(FaultOrder(Fault.ENGINE_RAISE))
    with pytest.raises(Injected):
        wrapped.forward([item])
    faults.arm(FaultOrder(Fault.ENGINE_DELAY, seconds=0.001))
    assert wrapped.forward([item])[0].token is not None
    wrapped.end(KEY)


def test_the_lane_of_decode_breaks_where_a_room_begins(engine: Engine, faults: Faults) -> None:
    faults.arm(FaultOrder(Fault.LANE_RAISE, times=0))
    with pytest.raises(Injected):
        begun(engine, faults, Role.DECODE)
    begun(engine, faults, Role.PREFILL)
    engine.end(KEY)


def test_a_write_that_fails_has_written_half_and_is_cut(engine: Engine, faults: Faults) -> None:
    wire = Wire()
    backend = ChaosBackend(wire, engine, faults)
    copies = [Copy(engine.kv_memory()[0], 1, 8), Copy(engine.kv_memory()[0] + 8, 9, 8)]
    faults.arm(FaultOrder(Fault.WRITE_FAIL))
    with pytest.raises(WriteCut):
        backend.write("there", copies)
    assert wire.written == [copies[:1]]
    backend.write("there", copies)
    assert wire.written[1:] == [copies]


def test_a_page_that_is_spoilt_has_other_bytes_there_and_no_row_is_taken_for_one(
    engine: Engine, faults: Faults
) -> None:
    wire, row = Wire(), Copy(64, 1, ROW_BYTES)
    backend = ChaosBackend(wire, engine, faults)
    backend.register([Region(*engine.kv_memory()), Region(64, ROW_BYTES)])
    page = Copy(engine.kv_memory()[0], 4096, 64)
    faults.arm(FaultOrder(Fault.WRITE_CORRUPT))
    for copies in ([row], [page], [page]):
        backend.write("there", copies)
    first, right, (junk,), last = wire.written
    assert [first, right, last] == [[row], [page], [page]]
    assert (junk.target, junk.bytes) == (page.target, JUNK_BYTES)
    assert Region(junk.source, JUNK_BYTES) in wire.registered


def known(backend: ChaosBackend, engine: Engine) -> Ledger:
    """Let a backend know a core's pages, and return them."""
    pages = Ledger(engine.pages)
    backend.places = places_of(engine.kv_regions(), NO_POOL, pages, Ledger(0))
    return pages


def test_a_write_is_known_by_the_owner_of_its_pages_and_its_row_too(
    engine: Engine, faults: Faults
) -> None:
    wire = Wire()
    backend = ChaosBackend(wire, engine, faults)
    pages = known(backend, engine)
    pages.take(RoomKey(6, 1), 1, Owner.REQUEST)
    pages.take(KEY, 1, Owner.REQUEST)
    page_bytes = engine.kv_regions()[0].page_bytes
    first, row = engine.kv_memory()[0], Copy(1, 1, 8)
    faults.arm(FaultOrder(Fault.LANE_RAISE, times=2, room=7))
    backend.write("there", [Copy(first, 1, page_bytes)])
    backend.write("there", [row])
    for copies in ([Copy(first + page_bytes, 1, page_bytes)], [row]):
        with pytest.raises(Injected):
            backend.write("there", copies)
    faults.arm(FaultOrder(Fault.WRITE_DELAY, seconds=0.001))
    faults.arm(FaultOrder(Fault.WRITE_FREEZE, seconds=0.001))
    backend.write("there", [row])
    assert faults.fired["write.freeze"] == faults.fired["write.delay"] == 1


def test_a_row_whose_pages_need_not_travel_and_a_page_that_is_read_are_known_too(
    engine: Engine, faults: Faults
) -> None:
    backend, rows = ChaosBackend(Wire(), engine, faults), Region(64, 4 * ROW_BYTES)
    backend.register([Region(*engine.kv_memory()), rows])
    pages, backend.rows = known(backend, engine), Ledger(4, "row")
    backend.rows.take(RoomKey(6, 1), 1, Owner.REQUEST)
    backend.rows.take(KEY, 1, Owner.REQUEST)
    pages.move(KEY, pages.take(KEY, 1, Owner.REQUEST), Owner.REQUEST, Owner.CACHED)
    pages.read_by(KEY, 0)
    faults.arm(FaultOrder(Fault.LANE_RAISE, times=2, room=7))
    backend.write("there", [Copy(rows.address, 1, ROW_BYTES)])
    for copies in ([Copy(rows.address + ROW_BYTES, 1, ROW_BYTES)], [Copy(backend._pool, 1, 8)]):
        with pytest.raises(Injected):
            backend.write("there", copies)


def test_messages_get_lost_come_twice_broken_or_late(faults: Faults) -> None:
    core = ChaosCore(Echo(), faults)

    def said(fault: Fault, **more: Any) -> Sequence[object]:
        faults.arm(FaultOrder(fault, **more))
        return core.handle(ENDED, 0.0)

    assert said(Fault.MESSAGE_DROP, message="Abort") == []
    assert said(Fault.MESSAGE_DUPLICATE) == [ENDED, ENDED]
    assert said(Fault.MESSAGE_CORRUPT, room=7) == [Mangled(PEER, ENDED.message)]
    assert said(Fault.MESSAGE_REORDER) == []
    assert core.busy
    assert core.handle(OTHER, 0.1) == [OTHER, ENDED]
    assert said(Fault.MESSAGE_REORDER) == []
    assert core.handle(Tick(), 0.5) == []
    assert core.handle(Tick(), 1.5) == [ENDED]
    assert not core.busy
    faults.arm(FaultOrder(Fault.MESSAGE_DROP, message="Heartbeat"))
    assert core.handle(SendHeartbeat(PEER), 2.0) == []
    assert core.handle(SendHeartbeat(PEER), 2.0) == [SendHeartbeat(PEER)]


def test_an_output_that_is_struck_cannot_become_bytes(faults: Faults) -> None:
    core = ChaosCore(Echo(), faults)
    faults.arm(FaultOrder(Fault.PUBLISH_RAISE, room=7))
    good = Output(8, 1, (TokenOut(3),))
    (told,) = core.handle(Tell((good, Output(7, 1, (TokenOut(3),)))), 0.0)
    assert isinstance(told, Tell)
    assert told.outputs[0] == good
    assert not isinstance(told.outputs[1].tokens[0], TokenOut)


def test_a_core_that_breaks_raises(faults: Faults) -> None:
    core = ChaosCore(Echo(), faults)
    faults.arm(FaultOrder(Fault.SCHEDULER_RAISE))
    with pytest.raises(Injected):
        core.handle(Submitted(submit()), 0.0)


def test_pages_and_rows_that_are_taken_away_are_on_the_books_until_clear(faults: Faults) -> None:
    core = prefill_core(pages=8)
    shell, _ = shell_of(core, faults)
    assert order(shell, Fault.PAGES_SHRINK, amount=5)["armed"] == ["pages.shrink 5"]
    assert order(shell, Fault.ROWS_SHRINK, amount=3)["refused"] == ""
    assert (core.pages.free, core.rows.free) == (3, 1)
    assert core.pages.owner(0) == (Owner.REQUEST, TAKEN)
    order(shell, Fault.PAGES_SHRINK, amount=8)
    assert core.pages.free == 0
    assert "9 wanted" in str(order(shell, Fault.PAGES_SHRINK, amount=9)["refused"])
    assert shell.answer(Chaos(2, clear=True), 0.0) == {"armed": [], "refused": ""}
    assert (core.pages.free, core.rows.free) == (8, 4)
    core.pages.check()


def test_deadlines_scale_and_come_back(faults: Faults) -> None:
    core = prefill_core()
    usual = core.config.timers
    wrapped = ChaosCore(Echo(), faults)
    shell = ChaosShell(Wire(), core, wrapped, Wire(), faults)
    order(shell, Fault.DEADLINES_SCALE, amount=0.5)
    assert core.config.timers.queue_s == usual.queue_s / 2
    assert core.config.timers.settle_s == usual.settle_s  # a fence is no deadline
    (event,) = wrapped.handle(Submitted(submit()), 0.0)
    assert isinstance(event, Submitted)
    assert event.submit.timeout_s == submit().timeout_s / 2
    shell.answer(Chaos(2, clear=True), 0.0)
    assert core.config.timers == usual


def test_scaled_deadlines_hold_for_a_room_that_is_in_transfer_already(faults: Faults) -> None:
    core = in_transfer()
    shell, _ = shell_of(core, faults)
    order(shell, Fault.DEADLINES_SCALE, amount=0.5)
    limit_s = TIMERS.destination_s / 2 + MARGIN_S
    heard(core, limit_s - 0.1)
    assert causes(core.handle(Tick(), limit_s - 0.1)) == []
    assert causes(core.handle(Tick(), limit_s)) == [Cause.PEER_NEVER_CAME]


def test_a_status_says_what_is_armed_and_what_has_struck(faults: Faults) -> None:
    shell, _ = shell_of(prefill_core(), faults)
    order(shell, Fault.WRITE_FAIL, times=2)
    faults.take(Fault.WRITE_FAIL)
    status = shell.answer(Ask(3, AskFor.STATUS), 0.0)["status"]
    assert status == {
        "counters": {"steps": 1.0, "chaos:write.fail": 1.0},
        "chaos": ["write.fail"],
    }


def test_an_order_with_a_flaw_is_refused_and_asking_changes_nothing(faults: Faults) -> None:
    shell, _ = shell_of(prefill_core(), faults)
    assert "seconds" in str(order(shell, Fault.WRITE_DELAY)["refused"])
    assert shell.answer(Chaos(1), 0.0) == {"armed": [], "refused": ""}


def test_a_mangled_message_differs_by_one_bit_and_other_commands_go_on(faults: Faults) -> None:
    shell, wire = shell_of(prefill_core(), faults)
    assert shell.execute(Mangled(PEER, ENDED.message)) is None
    (raw,) = wire.sent
    assert sum(byte.bit_count() for byte in raw) == 1
    assert shell.execute("other") == "other"


def test_a_room_of_a_step_is_retracted_before_its_result_comes(faults: Faults) -> None:
    core = ChaosCore(Echo(), faults, lambda key: ("retract", key))
    faults.arm(FaultOrder(Fault.ROOM_RETRACT, room=7))
    step = StepDone((Result(RoomKey(8, 1)), Result(KEY)))
    assert core.handle(step, 0.0) == [("retract", KEY), step]
    assert core.handle(step, 0.0) == [step]
    shell, _ = shell_of(prefill_core(), faults)
    assert "only a decode" in str(order(shell, Fault.ROOM_RETRACT)["refused"])
    shell = ChaosShell(Wire(), decode_core(), core, Wire(), faults)
    assert "retract_tokens is 0" in str(order(shell, Fault.ROOM_RETRACT)["refused"])
    shell = ChaosShell(Wire(), decode_core(retract_tokens=64), core, Wire(), faults)
    assert order(shell, Fault.ROOM_RETRACT)["armed"] == ["room.retract"]


def test_hooks_join_the_core_with_the_backend(engine: Engine) -> None:
    hooks = Hooks(engine, Wire(), Role.PREFILL)
    core = prefill_core()
    around, shell = hooks.around(core, Wire(), Wire())
    assert hooks.backend.places is not None
    assert hooks.backend.places.pages is core.pages
    assert isinstance(around, ChaosCore)
    assert isinstance(shell, ChaosShell)
    hooks.backend.close()

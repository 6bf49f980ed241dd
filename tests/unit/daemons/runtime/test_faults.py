"""Armed faults."""

from __future__ import annotations

import threading

import pytest

from daemons.protocol.chaos import Fault, FaultOrder
from daemons.runtime.faults import Faults, Injected


def test_a_fault_strikes_as_often_as_was_ordered() -> None:
    faults = Faults()
    faults.arm(FaultOrder(Fault.WRITE_FAIL, times=2))
    struck = [faults.take(Fault.WRITE_FAIL) is not None for _ in range(3)]
    assert struck == [True, True, False]
    assert faults.fired == {"write.fail": 2}


def test_without_end_it_strikes_until_it_is_cleared() -> None:
    faults = Faults()
    faults.arm(FaultOrder(Fault.WRITE_FAIL, times=0))
    assert all(faults.take(Fault.WRITE_FAIL) for _ in range(5))
    assert faults.words() == ["write.fail until clear"]
    faults.clear()
    assert faults.take(Fault.WRITE_FAIL) is None
    assert faults.words() == []


def test_a_fault_of_one_room_leaves_the_others_alone() -> None:
    faults = Faults()
    faults.arm(FaultOrder(Fault.ENGINE_RAISE, room=7))
    faults.strike(Fault.ENGINE_RAISE, room=8)
    faults.strike(Fault.WRITE_FAIL, room=7)
    with pytest.raises(Injected, match=r"engine\.raise of room"):
        faults.strike(Fault.ENGINE_RAISE, room=7)


def test_heartbeats_are_only_meant_when_they_are_named() -> None:
    faults = Faults()
    faults.arm(FaultOrder(Fault.MESSAGE_DROP))
    assert faults.take(Fault.MESSAGE_DROP, message="Heartbeat") is None
    assert faults.take(Fault.MESSAGE_DROP, message="Progress") is not None
    faults.arm(FaultOrder(Fault.MESSAGE_DROP, message="Heartbeat"))
    assert faults.take(Fault.MESSAGE_DROP, message="Progress") is None
    assert faults.take(Fault.MESSAGE_DROP, message="Heartbeat") is not None


def test_what_is_held_is_seen_and_goes_on_when_it_is_cleared() -> None:
    faults, order = Faults(), FaultOrder(Fault.WRITE_FREEZE)
    thread = threading.Thread(target=faults.hold, args=(order,))
    thread.start()
    while not faults.words():
        thread.join(0.001)
    assert faults.words() == ["write.freeze (holds now)"]
    faults.clear()
    thread.join(10)
    assert not thread.is_alive()
    assert faults.words() == []


def test_what_is_held_for_a_time_goes_on_by_itself() -> None:
    faults = Faults()
    faults.hold(FaultOrder(Fault.WRITE_FREEZE, seconds=0.001))
    assert faults.words() == []

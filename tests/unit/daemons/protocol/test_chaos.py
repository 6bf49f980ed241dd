"""Orders for faults."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.chaos import LASTING, Fault, FaultOrder, flaw


@pytest.mark.parametrize("fault", Fault)
def test_an_order_with_all_that_its_fault_needs_has_no_flaw(fault: Fault) -> None:
    assert flaw(FaultOrder(fault, seconds=1, amount=2)) == ""


@pytest.mark.parametrize("fault", sorted(LASTING))
def test_what_lasts_needs_an_amount(fault: Fault) -> None:
    assert "amount" in flaw(FaultOrder(fault))


@pytest.mark.parametrize("fault", [Fault.WRITE_DELAY, Fault.ENGINE_DELAY])
def test_a_delay_needs_seconds(fault: Fault) -> None:
    assert "seconds" in flaw(FaultOrder(fault))


def test_only_a_fault_of_messages_may_name_one() -> None:
    assert "no message" in flaw(FaultOrder(Fault.WRITE_FAIL, message="Progress"))
    assert flaw(FaultOrder(Fault.MESSAGE_DROP, message="Progress")) == ""


def test_an_order_reads_as_what_it_does() -> None:
    order = FaultOrder(Fault.MESSAGE_DROP, times=0, room=0x7F, message="Abort")
    assert str(order) == "message.drop of room 0000000000007f of Abort until clear"
    assert str(FaultOrder(Fault.WRITE_DELAY, times=3, seconds=0.5)) == "write.delay 0.5 s x3"


def test_an_unknown_fault_or_field_is_refused() -> None:
    for bad in ({"fault": "write.burn"}, {"fault": "write.fail", "hours": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bad, FaultOrder)

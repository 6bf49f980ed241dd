"""Faults that can be put into a running worker on purpose: a closed list.

They are for tests and for staging clusters, and refused where the cluster file does not say
``chaos: true``. Freezing and killing whole processes are signals, not faults of this list.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec


class Fault(StrEnum):
    """What goes wrong, as ``where.what``."""

    INTAKE_RAISE = "intake.raise"  # front: handing a request to the rank raises
    PUBLISH_RAISE = "publish.raise"  # rank: an output for the front cannot be sent
    SCHEDULER_RAISE = "scheduler.raise"  # the core raises: a defect, the instance ends
    LANE_RAISE = "lane.raise"  # prefill: a write lane; decode: the forward lane at a room's begin
    WRITE_DELAY = "write.delay"  # prefill: a write takes ``seconds`` longer
    WRITE_FAIL = "write.fail"  # prefill: half of a write lands, then its connection is cut
    WRITE_FREEZE = "write.freeze"  # prefill: a write stands still for ``seconds``, 0: until clear
    WRITE_CORRUPT = "write.corrupt"  # prefill: a page has other bytes once it has landed
    MESSAGE_DROP = "message.drop"  # a message to a peer is lost
    MESSAGE_DUPLICATE = "message.duplicate"  # it is sent twice
    MESSAGE_REORDER = "message.reorder"  # it is sent after the next one to the same peer
    MESSAGE_CORRUPT = "message.corrupt"  # a bit of it is turned
    ENGINE_EOS = "engine.eos"  # a token that is chosen becomes the model's end of sequence
    ENGINE_REJECT = "engine.reject"  # the engine refuses one room of a batch
    ENGINE_RAISE = "engine.raise"  # a whole forward raises
    ENGINE_DELAY = "engine.delay"  # a forward takes ``seconds`` longer
    ROOM_RETRACT = "room.retract"  # decode: a running room leaves the batch and comes back
    PAGES_SHRINK = "pages.shrink"  # ``amount`` free pages are taken away, until clear
    ROWS_SHRINK = "rows.shrink"  # the same of metadata rows
    DEADLINES_SCALE = "deadlines.scale"  # every deadline times ``amount``, until clear


LASTING = frozenset({Fault.PAGES_SHRINK, Fault.ROWS_SHRINK, Fault.DEADLINES_SCALE})
OF_THE_FRONT = frozenset({Fault.INTAKE_RAISE})


class FaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault to be armed; also the body of ``POST /chaos``."""

    fault: Fault
    times: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1  # firings; 0: until clear
    room: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # 0: whichever comes
    message: str = ""  # message.*: its type (Destination, Progress, …); "": any but Heartbeat
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    amount: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0

    def __str__(self) -> str:
        times = {0: " until clear", 1: ""}.get(self.times, f" x{self.times}")
        parts = [
            f" of room {self.room:014x}" if self.room else "",
            f" of {self.message}" if self.message else "",
            f" {self.seconds:g} s" if self.seconds else "",
            f" {self.amount:g}" if self.amount else "",
        ]
        return self.fault.value + "".join(parts) + times


def flaw(order: FaultOrder) -> str:
    """Return what is wrong with an order, "" when nothing is."""
    fault = order.fault
    if fault in LASTING and not order.amount:
        return f"{fault.value} needs an amount above 0"
    if fault in (Fault.WRITE_DELAY, Fault.ENGINE_DELAY) and not order.seconds:
        return f"{fault.value} needs seconds above 0"
    if order.message and not fault.value.startswith("message."):
        return f"{fault.value} is about no message"
    return ""

"""Faults that are armed in this process: taken one by one where they shall strike.

Any thread may take one. What is armed, held and fired is always visible, so that nobody forgets it.
"""

from __future__ import annotations

import threading
from collections import Counter

import msgspec

from daemons.protocol.chaos import Fault, FaultOrder

NOT_ALLOWED = "faults are not allowed here: the cluster file does not say chaos: true"
HEARTBEAT = "Heartbeat"


class Injected(Exception):
    """A fault that was asked for."""


class Faults:
    """The orders that wait to strike."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._armed: list[FaultOrder] = []
        self._held: list[FaultOrder] = []
        self._clears = 0
        self.fired: Counter[str] = Counter()

    def arm(self, order: FaultOrder) -> None:
        """Let a fault strike from now on."""
        with self._changed:
            self._armed.append(order)

    def take(self, fault: Fault, *, room: int = 0, message: str = "") -> FaultOrder | None:
        """Return an order that strikes here and now, and count it; None: all is well."""
        with self._changed:
            for place, order in enumerate(self._armed):
                if order.fault is fault and _concerns(order, room, message):
                    self.fired[fault.value] += 1
                    self._used(place, order)
                    return order
        return None

    def strike(self, fault: Fault, *, room: int = 0) -> None:
        """Raise :class:`Injected` if such a fault strikes here and now."""
        if (order := self.take(fault, room=room)) is not None:
            raise Injected(f"chaos: {order}")

    def hold(self, order: FaultOrder) -> None:
        """Stand still for the order's seconds (0: without end), at most until ``clear``."""
        with self._changed:
            clears = self._clears
            self._held.append(order)
            self._changed.wait_for(lambda: self._clears != clears, order.seconds or None)
            self._held.remove(order)

    def clear(self) -> None:
        """Disarm everything and let go of what is held."""
        with self._changed:
            self._armed.clear()
            self._clears += 1
            self._changed.notify_all()

    def words(self) -> list[str]:
        """Return what is armed or held, for people."""
        with self._changed:
            return [*map(str, self._armed), *(f"{order} (holds now)" for order in self._held)]

    def _used(self, place: int, order: FaultOrder) -> None:
        if order.times == 1:
            del self._armed[place]
        elif order.times > 1:
            self._armed[place] = msgspec.structs.replace(order, times=order.times - 1)


def _concerns(order: FaultOrder, room: int, message: str) -> bool:
    if order.room and order.room != room:
        return False
    if order.message:
        return order.message == message
    return message != HEARTBEAT

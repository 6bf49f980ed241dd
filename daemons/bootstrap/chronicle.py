"""What happened to instances lately, for ``pdctl events``: pure, bounded, times are arguments.

An event is a change that the registry saw. Renewed leases are none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from daemons.protocol.topology import FleetEvent, Registration, State

EVENTS_LIMIT = 1000


@dataclass(slots=True)
class Chronicle:
    """The last events, the oldest first."""

    events: deque[FleetEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_LIMIT))

    def heard(self, change: str, said: Registration, at_s: float) -> None:
        """Take in what a registration did; a change of state is told by the new state."""
        what = said.state.value if change == "state" else change
        where = f"{said.http_host}:{said.http_port}"
        is_told = said.state is State.READY or what == said.state.value
        detail = where if is_told else f"{where}, {said.state.value}"
        event = FleetEvent(at_s, what, said.instance, said.role.value, said.epoch, detail)
        self.events.append(event)

    def lost(self, change: str, instance: str, at_s: float, detail: str = "") -> None:
        """Take in that an instance is gone, in whatever way."""
        self.events.append(FleetEvent(at_s, change, instance, detail=detail))

    def since(self, at_s: float) -> Iterator[FleetEvent]:
        """Yield the events after a time, the oldest first."""
        return (event for event in self.events if event.at_s > at_s)

"""A request as it is served: what is ordered, by whom, and until when; pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from daemons.lb.fleet import Wish
from daemons.lb.order import Order


class Asked(msgspec.Struct, frozen=True):
    """What a client asked for."""

    order: Order
    headers: Mapping[str, str]  # that workers get too
    total_s: float
    who: str = ""  # the client, by key or address
    session: str = ""  # from a header; goes before the body's
    begun_s: float = msgspec.field(default_factory=time.monotonic)

    @property
    def wish(self) -> Wish:
        """Return what the choice of a pair looks at."""
        order = self.order
        session = self.session or order.session
        prompt_tokens = order.prompt_tokens // (order.items or 1)
        return Wish(order.rooms, order.tokens, prompt_tokens, order.prompt, session)

    def left_s(self) -> float:
        """Return how much of its time is left."""
        return self.total_s - (time.monotonic() - self.begun_s)

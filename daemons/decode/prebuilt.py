"""Decode, stage 3 of 4: a batch that never enters the model, since prefill has run it already.

The first token comes from the metadata row. From here on a room is as if this process had run
the prefill itself; the same rules end it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.request import Request
from daemons.engine.step import Sequence
from daemons.protocol.ids import RoomKey
from daemons.protocol.metadata import Row


@dataclass(slots=True)
class Prebuilt:
    """Rooms with their KV in place and a first token, until the next batch is formed."""

    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def add(self, request: Request, row: Row) -> Sequence:
        """Take a room whose row is right; returns it as the engine is to know it."""
        request.output = [row.first.id]
        self.rooms[request.key] = request
        return Sequence(
            request.key, request.submit.sampling, request.submit.prompt, (row.first.id,)
        )

"""Decode, stage 3 of 4: a batch that never enters the model, since prefill has run it already.

The first token comes from the metadata row, or from the last chunk where this instance computed
the prompt. From here on it makes no difference; the same rules end a room.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.request import Request
from daemons.engine.step import Sequence
from daemons.protocol.ids import RoomKey


@dataclass(slots=True)
class Prebuilt:
    """Rooms with their KV in place and a first token, until the next batch is formed."""

    rooms: dict[RoomKey, Request] = field(default_factory=dict)

    def add(self, request: Request, first: int) -> Sequence:
        """Take a room with its first token; returns it as the engine is to know it."""
        request.output = [first]
        self.rooms[request.key] = request
        return Sequence(request.key, request.submit.sampling, request.submit.prompt, (first,))

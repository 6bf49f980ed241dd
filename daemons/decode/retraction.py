"""Rooms leave the batch when pages are short, and come back when there are some.

Whom it hits and why somebody always gets on is in ``retracted_queue`` and ``budget``; here pages
change hands. They are free when they have been copied, and a room runs when its own are back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from daemons.decode.ends import Ends
from daemons.decode.memory import Memory
from daemons.decode.outbox import Outbox
from daemons.decode.request import Request
from daemons.decode.retracted_queue import victim
from daemons.decode.stages import Stages
from daemons.engine.step import Keep, Kept, Restore, Restored
from daemons.kv.ledger import Owner
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import RoomKey
from daemons.runtime.recorder import Recorder


@dataclass(slots=True)
class Retraction:
    """Rooms on their way to the host and back."""

    stages: Stages
    memory: Memory
    ends: Ends
    recorder: Recorder
    out: Outbox
    asked: set[RoomKey] = field(default_factory=set)  # to leave, as soon as no step is under way

    def make_room(self, now: float) -> None:
        """Retract rooms until those of the batch that are short of a page will have it.

        No step is under way.
        """
        running = self.stages.running
        for key in self.asked:
            if (request := running.rooms.get(key)) and self._host_takes(request):
                self._retract(request, "it was asked for", now)
        self.asked.clear()
        short = running.short(self.memory.pages)
        while len(short) > self.stages.retracted.coming:
            ours = chain(self.stages.prebuilt.rooms.values(), running.rooms.values())
            request = victim(other for other in ours if other.is_ready)
            if request is None or not self._host_takes(request):
                return
            self._retract(request, f"{len(short)} rooms are short of a page", now)
            short = [other for other in short if other is not request]

    def kept(self, event: Kept, now: float) -> None:
        """The host has a room's pages: ours are free."""
        request = self._copied(event.key, event.error, now)
        if request is not None:
            self.memory.cache.release(request)
            self.recorder.note(event.key, f"the host keeps {request.kept} pages", now)

    def resume(self) -> None:
        """Bring rooms back, oldest first, as far as pages and places in the batch go."""
        stages, pages = self.stages, self.memory.pages
        while (request := stages.retracted.next()) is not None:
            returning = stages.retracted.returning
            if len(stages.running.rooms) + returning >= stages.running.batch_rooms:
                return
            ours = [*stages.running.rooms.values(), *stages.prebuilt.rooms.values()]
            ours += stages.forward.rooms.values()
            alone = not ours and not returning
            spare = 0 if alone else 1 + returning + sum(r.promised > 0 for r in ours)
            if request.kept + spare > pages.available:
                return
            request.pages = pages.take(request.key, request.kept, Owner.REQUEST)
            request.kept, request.in_steps = 0, 1
            self.out.do(Restore(request.key, request.pages))

    def restored(self, event: Restored, now: float) -> None:
        """A room's pages are here again: it is in the batch."""
        request = self._copied(event.key, event.error, now)
        if request is not None:
            del self.stages.retracted.rooms[request.key]
            self.stages.running.rooms[request.key] = request
            self.recorder.enter(event.key, "running", "its pages are back", now)

    def _host_takes(self, request: Request) -> bool:
        stages = self.stages
        return stages.kept_pages + len(request.pages) <= stages.retracted.host_pages

    def _retract(self, request: Request, because: str, now: float) -> None:
        key = request.key
        self.stages.take_out(key)
        self.stages.retracted.rooms[key] = request
        request.kept, request.in_steps = len(request.pages), 1
        self.recorder.enter(key, "retracted", because, now)
        self.out.count("retractions")
        self.out.do(Keep(key, request.pages))

    def _copied(self, key: RoomKey, error: str, now: float) -> Request | None:
        """Return the room whose pages were copied, unless that was its end."""
        request = self.stages.ending.get(key) or self.stages.retracted.rooms.get(key)
        if request is None:
            return None
        request.in_steps = 0
        if request.failure is not None or request.finished:
            self.ends.end(request, request.failure, now)
        elif error:
            me = self.out.me.instance
            self.ends.fail(request, Failure(Cause.ENGINE_FAILED, "retracted", me, error), now)
        else:
            return request
        return None

"""The rooms that clients wait for: who gets which output, and how each of them ends.

A call is one HTTP request: one room, or a batch. The first failure of any of its rooms ends all
of them; a cancel wins over a finish that nobody has read yet; however a call ends, the rank is
told about every room that it has not ended itself. Outputs for rooms nobody waits for are counted
and dropped. Nothing here blocks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from tokenizers import Tokenizer

from daemons.front.metrics import Meter
from daemons.front.output import Order, Piece, Track
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Cancel, Finish, Output, ToRank
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import Refusal

GRACE_S = 2.0  # the rank's own deadline comes first: it knows the stage
WAITING, STREAMING = "submitted", "streaming"  # stages as the front sees them

Tell = Callable[[ToRank], None]


class OpenRooms:
    """All calls of a front, found by room and by request id."""

    def __init__(self, tell: Tell, meter: Meter) -> None:
        """``tell`` puts a message on its way to the ranks; it raises Refusal when it cannot."""
        self.tell = tell
        self.meter = meter
        self._calls: dict[RoomKey, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Make a call's rooms known.

        Raises:
            Refusal: 409, one of them is open already; none was added.
        """
        for order in call.orders:
            if order.key in self._calls:
                failure = Failure(Cause.REQUEST_DUPLICATE, "intake", "", "the room is open here")
                raise Refusal.of(failure, room=order.key.room, attempt=order.key.attempt)
        for order in call.orders:
            self._calls[order.key] = call

    def drop(self, key: RoomKey, call: Call) -> None:
        """Forget a room of ``call``; the same room opened anew by another call stays."""
        if self._calls.get(key) is call:
            del self._calls[key]

    def deliver(self, outputs: Iterable[Output]) -> None:
        """Hand outputs of a rank to whoever waits for them."""
        for output in outputs:
            call = self._calls.get(RoomKey(output.room, output.attempt))
            if call is None:
                self.meter.late_outputs.inc()
            else:
                call.put(output)

    def abort(self, rid: str) -> int:
        """End the rooms of a request id, ``"abort_all"`` every room; return how many."""
        chosen = {
            key: call
            for key, call in self._calls.items()
            if rid == "abort_all" or call.is_called(key, rid)
        }
        for key, call in chosen.items():
            call.fail(key, Failure(Cause.CLIENT_CANCELLED, call.stage(key), "", f"rid {rid}"))
        return len(chosen)

    def fail_all(self, cause: Cause, peer: str, detail: str) -> None:
        """End every room: the instance goes away."""
        for key, call in list(self._calls.items()):
            call.fail(key, Failure(cause, call.stage(key), peer, detail))


class Call:
    """The rooms of one HTTP request; iterate it for ``(index of the order, piece)``."""

    def __init__(
        self, orders: Sequence[Order], rooms: OpenRooms, tokenizer: Tokenizer, timeout_s: float
    ) -> None:
        self.orders = tuple(orders)
        self.begun_s = asyncio.get_running_loop().time()
        self.deadline_s = self.begun_s + timeout_s + GRACE_S  # clock of the event loop
        self._timeout_s = timeout_s
        self._rooms = rooms
        self._index = {order.key: n for n, order in enumerate(self.orders)}
        self._tracks = [Track(order, tokenizer) for order in self.orders]
        self._last_s = [0.0] * len(self.orders)
        self._arrived: deque[tuple[float, Output]] = deque()  # with its time, loop's clock
        self._ended_by_rank: set[RoomKey] = set()
        self._failed: tuple[RoomKey, Failure] | None = None
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Call:
        self._rooms.add(self)
        submitted: list[RoomKey] = []
        try:
            for order in self.orders:
                self._rooms.tell(order.submit(self._timeout_s))
                submitted.append(order.key)
        except Exception as error:
            known = error.failure if isinstance(error, Refusal) else None
            failure = known or Failure(Cause.INTERNAL, "intake", "", _words(error))
            self._leave(failure, submitted)
            if known is not None:
                raise
            first = self.orders[len(submitted)].key
            raise Refusal.of(failure, room=first.room, attempt=first.attempt) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._failed is not None:
            failure = self._failed[1]
        elif isinstance(error, Refusal) and error.failure is not None:
            failure = error.failure
        elif error is None or isinstance(error, asyncio.CancelledError | ConnectionError):
            failure = Failure(Cause.CLIENT_DISCONNECTED, self._stage(), "", str(error or ""))
        else:
            failure = Failure(Cause.INTERNAL, self._stage(), "", f"{type(error).__name__}: {error}")
        self._leave(failure, [order.key for order in self.orders])

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> tuple[int, Piece]:
        """Return the next piece of any room.

        Raises:
            StopAsyncIteration: every room has ended well.
            Refusal: a room failed, or the time is over.
        """
        while True:
            self._check()
            while self._arrived:
                taken = self._take(*self._arrived.popleft())
                if taken is not None:
                    return taken
                self._check()
            if all(track.end is not None for track in self._tracks):
                raise StopAsyncIteration
            await self._more()

    def put(self, output: Output) -> None:
        """Take an output of the rank."""
        key = RoomKey(output.room, output.attempt)
        if output.finish is not None or output.failure is not None:
            self._ended_by_rank.add(key)
        if output.failure is not None:
            self.fail(key, output.failure)
            return
        self._arrived.append((asyncio.get_running_loop().time(), output))
        self._wake.set()

    def fail(self, key: RoomKey, failure: Failure) -> None:
        """End the call; the first cause stays."""
        if self._failed is None:
            self._failed = (key, failure)
        self._wake.set()

    def is_called(self, key: RoomKey, rid: str) -> bool:
        """Say whether ``rid`` names this room, by itself or as part of a batch."""
        own = self.orders[self._index[key]].rid
        return own == rid or (len(self.orders) > 1 and own.rpartition("_")[0] == rid)

    def stage(self, key: RoomKey) -> str:
        """Return how far a room is, as far as a front can know."""
        return STREAMING if self._tracks[self._index[key]].begun else WAITING

    def _stage(self) -> str:
        return STREAMING if any(track.begun for track in self._tracks) else WAITING

    def _check(self) -> None:
        if self._failed is not None:
            (room, attempt), failure = self._failed
            raise Refusal.of(failure, room=room, attempt=attempt)

    def _take(self, at_s: float, output: Output) -> tuple[int, Piece] | None:
        index = self._index[RoomKey(output.room, output.attempt)]
        track = self._tracks[index]
        if track.end is not None:  # after its stop string
            return None
        first = not track.begun
        piece = track.feed(output)
        self._measure(index, at_s, first=first, tokens=len(piece.tokens))
        if track.end is not None:
            self._end(self.orders[index].key)
        return index, piece

    def _end(self, key: RoomKey) -> None:
        """A room ended well; where that was a stop string, the rank does not know yet."""
        if key not in self._ended_by_rank:
            self._ended_by_rank.add(key)
            self._rooms.tell(Finish(key.room, key.attempt))
        self._rooms.drop(key, self)

    async def _more(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout_at(self.deadline_s):
                await self._wake.wait()
        except TimeoutError:
            key = next(o.key for o, t in zip(self.orders, self._tracks, strict=True) if not t.end)
            detail = f"{self._timeout_s:g} s and the rank is silent"
            self.fail(key, Failure(Cause.TOTAL_TIMEOUT, self.stage(key), "", detail))

    def _measure(self, index: int, at_s: float, *, first: bool, tokens: int) -> None:
        """Count tokens by the time at which they came, whenever the client takes them."""
        if not tokens:
            return
        if first:
            self._rooms.meter.first_token(at_s - self.begun_s)
        else:
            self._rooms.meter.next_tokens(at_s - self._last_s[index], tokens)
        self._last_s[index] = at_s

    def _leave(self, failure: Failure, submitted: Iterable[RoomKey]) -> None:
        """Forget all rooms; cancel those of ``submitted`` that still go on in the rank."""
        open_keys = [key for key in submitted if key not in self._ended_by_rank]
        for order in self.orders:
            self._rooms.drop(order.key, self)
        for key in open_keys:
            self._rooms.tell(Cancel(key.room, key.attempt, failure))
        ended_well = self._failed is None and all(t.end is not None for t in self._tracks)
        outcome = "ok" if ended_well else failure.cause.value
        elapsed_s = asyncio.get_running_loop().time() - self.begun_s
        self._rooms.meter.ended(outcome, elapsed_s)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

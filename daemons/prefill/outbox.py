"""What the prefill core says while it handles one event: commands in order, and counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.prefill.commands import Command
from daemons.prefill.request import Request
from daemons.protocol.causes import Failure
from daemons.protocol.generate import FinishReason, Output
from daemons.protocol.handshake import Abort, AbortAnswer, Destination, Fence, Progress
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.status import Status
from daemons.runtime.closing import closing_line
from daemons.runtime.commands import Log, Send, Tell


@dataclass(slots=True)
class Outbox:
    """Collects commands until the scheduler takes them."""

    me: PeerId
    commands: list[Command] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    def take(self) -> list[Command]:
        """Return what was collected and begin anew."""
        taken, self.commands = self.commands, []
        return taken

    def do(self, *commands: Command) -> None:
        """Add commands as they are."""
        self.commands.extend(commands)

    def count(self, name: str, by: float = 1) -> None:
        """Raise a counter."""
        self.counters[name] = self.counters.get(name, 0) + by

    def log(self, event: str, **facts: object) -> None:
        """Log a fact about a peer."""
        self.do(Log(event, tuple(facts.items())))

    def progress(self, request: Request, status: Status) -> None:
        """Tell decode how far a room is."""
        if request.peer is not None:
            self._say(request.peer, request.key, status, request.sent_bytes)

    def final(
        self, peer: PeerId, key: RoomKey, failure: Failure | None, fence: Fence, sent_bytes: int = 0
    ) -> None:
        """Tell decode how a room ended; nothing of ours writes for it from now on."""
        status = Status.FAILED if failure else Status.SUCCESS
        self._say(peer, key, status, sent_bytes, failure, fence)

    def refuse(self, destination: Destination, failure: Failure) -> None:
        """Tell decode that a room ends before anything was written."""
        key = RoomKey(destination.room, destination.attempt)
        self.final(destination.sender, key, failure, Fence.CLEAN)

    def answer(self, abort: Abort, fence: Fence) -> None:
        """Answer an abort."""
        peer = abort.sender
        self.do(Send(peer, AbortAnswer(self.me, peer.epoch, abort.room, abort.attempt, fence)))

    def tell_failure(self, key: RoomKey, failure: Failure) -> None:
        """End the client's leg."""
        self.do(Tell((Output(key.room, key.attempt, failure=failure),)))

    def tell_first(self, request: Request) -> None:
        """Give the client's leg the one token that prefill makes, as soon as there is one.

        A token that ends the text waits for the hand-over: with it goes the good end.
        """
        if not ends_with_first(request):
            self.do(Tell((_first_output(request, None),)))

    def tell_end(self, request: Request) -> None:
        """Tell the client's leg that decode has everything."""
        room, attempt = request.key
        if not ends_with_first(request):
            self.do(Tell((Output(room, attempt, (), FinishReason.LENGTH),)))
            return
        assert request.first is not None
        ends = request.first.id in request.submit.sampling.ending_token_ids
        reason = FinishReason.STOP if ends else FinishReason.LENGTH
        self.do(Tell((_first_output(request, reason),)))

    def close(self, request: Request, failure: Failure | None, now: float) -> None:
        """Write the closing line and count the end."""
        self.count("rooms_failed" if failure else "rooms_done")
        if failure:
            self.count(f"failed:{failure.cause.value}")
        self.do(
            closing_line(
                request.key,
                failure,
                peer=request.peer_name,
                prompt_tokens=len(request.prompt),
                sent_bytes=request.sent_bytes,
                took_s=round(now - request.submitted_s, 6),
                **request.submit.names,
            )
        )

    def _say(
        self,
        peer: PeerId,
        key: RoomKey,
        status: Status,
        sent_bytes: int,
        failure: Failure | None = None,
        fence: Fence = Fence.CLEAN,
    ) -> None:
        message = Progress(
            self.me, peer.epoch, key.room, key.attempt, status, sent_bytes, failure, fence
        )
        self.do(Send(peer, message))


def ends_with_first(request: Request) -> bool:
    """Say whether the first token is the last one, whatever decode does."""
    sampling = request.submit.sampling
    assert request.first is not None
    return sampling.max_tokens == 1 or request.first.id in sampling.ending_token_ids


def _first_output(request: Request, finish: FinishReason | None) -> Output:
    first, sampling = request.first, request.submit.sampling
    assert first is not None
    return Output(
        request.key.room,
        request.key.attempt,
        (first,),
        finish,
        first.id if finish is FinishReason.STOP else None,
        cached_tokens=request.cached_tokens,
        prompt_logprobs=(
            None if sampling.prompt_logprobs is None else tuple(request.prompt_logprobs)
        ),
    )

"""What the decode core says while it handles one event: commands in order, and counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.decode.commands import Command
from daemons.decode.request import Request
from daemons.protocol.causes import Failure
from daemons.protocol.generate import FinishReason, Output, TokenOut, prompt_digest
from daemons.protocol.handshake import Abort, Destination
from daemons.protocol.ids import PeerId, RoomKey
from daemons.runtime.closing import closing_line
from daemons.runtime.commands import Log, Send, Tell


@dataclass(slots=True)
class Outbox:
    """Collects commands until the scheduler takes them."""

    me: PeerId
    commands: list[Command] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    def take(self) -> list[Command]:
        """Return what was collected, all outputs in one, and begin anew."""
        taken, self.commands = self.commands, []
        if self.outputs:
            taken.append(Tell(tuple(self.outputs)))
            self.outputs = []
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

    def destination(self, request: Request, page_size: int) -> None:
        """Tell prefill where a room goes, and what of its prompt we have already."""
        assert request.peer is not None
        assert request.row is not None
        key, cached = request.key, len(request.lease)
        message = Destination(
            self.me,
            request.peer.epoch,
            key.room,
            key.attempt,
            tuple(request.pages[cached:]),
            request.row,
            len(request.submit.prompt),
            prompt_digest(request.submit.prompt),
            cached * page_size,
            request.window.pages,
        )
        self.do(Send(request.peer, message))

    def abort(self, peer: PeerId, key: RoomKey, failure: Failure) -> None:
        """Tell prefill that a room is over."""
        self.do(Send(peer, Abort(self.me, peer.epoch, key.room, key.attempt, failure)))

    def tell_failure(self, key: RoomKey, failure: Failure) -> None:
        """End the client's leg."""
        self.outputs.append(Output(key.room, key.attempt, failure=failure))

    def tell_token(
        self,
        key: RoomKey,
        token: TokenOut,
        finish: FinishReason | None,
        finish_token: int | None,
        cached_tokens: int = 0,
        prompt_logprobs: tuple[TokenOut, ...] | None = None,
    ) -> None:
        """Give the client's leg a token."""
        self.outputs.append(
            Output(
                key.room,
                key.attempt,
                (token,),
                finish,
                finish_token,
                cached_tokens=cached_tokens,
                prompt_logprobs=prompt_logprobs,
            )
        )

    def close(self, request: Request, failure: Failure | None, now: float) -> None:
        """Write the closing line and count the end."""
        self.count("rooms_failed" if failure else "rooms_done")
        if failure:
            self.count(f"failed:{failure.cause.value}")
        self.do(
            closing_line(
                request.key,
                failure,
                peer=request.prefill,
                prompt_tokens=len(request.submit.prompt),
                output_tokens=len(request.output),
                received_bytes=request.sent_bytes,
                took_s=round(now - request.submitted_s, 6),
                **request.submit.names,
            )
        )

"""The texts of rooms: every token is the client's at once, and the last one ends its room."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.decode.ends import Ends
from daemons.decode.outbox import Outbox
from daemons.decode.request import Request
from daemons.decode.running_batch import finish_of
from daemons.decode.stages import Stages
from daemons.engine.step import Begin
from daemons.protocol.generate import TokenOut
from daemons.protocol.ids import RoomKey
from daemons.runtime.recorder import Recorder


@dataclass(slots=True)
class Texts:
    """What comes out of rooms."""

    stages: Stages
    ends: Ends
    recorder: Recorder
    out: Outbox

    def begin(self, request: Request, first: TokenOut, now: float, cached_tokens: int = 0) -> None:
        """The first token is the client's, and may be the last one too.

        ``cached_tokens`` of the prompt were found by whoever computed it.
        """
        request.since_s = now
        sequence = self.stages.prebuilt.add(request, first.id)
        finish, token = finish_of(request)
        wanted = request.local and request.submit.sampling.prompt_logprobs is not None
        judged = tuple(request.prompt_logprobs) if wanted else None
        self.out.tell_token(request.key, first, finish, token, cached_tokens, judged)
        if finish is not None:
            self.ends.end(request, None, now)
        elif not request.begun:
            request.begun = True
            self.out.do(Begin(sequence))

    def go_on(self, request: Request, token: TokenOut, now: float) -> None:
        """Give the client a token that a step of the batch has brought."""
        out, output = self.out, request.output
        output.append(token.id)
        out.count("output_tokens")
        if len(output) == 2:
            self.recorder.note(request.key, "first decoded token", now)
        finish, finish_token = finish_of(request)
        out.tell_token(request.key, token, finish, finish_token)
        if finish is not None:
            self.ends.end(request, None, now)

    def finished(self, key: RoomKey, now: float) -> None:
        """The front has found the end, a stop string; without a token there is none to find."""
        request = next((room for room in self.stages.ours() if room.key == key), None)
        if request is not None:
            request.finished = True
            self.ends.end(request, None, now)

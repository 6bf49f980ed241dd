"""``/v1/completions`` and ``/v1/chat/completions``: the same rooms in OpenAI's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from daemons.front.answers import Answer
from daemons.front.chat_template import TemplateRefusal
from daemons.front.desk import Desk, stream
from daemons.front.openai_answers import (
    CompletionLogprobs,
    Envelope,
    chat_logprobs,
    ending,
    is_worth_a_chunk,
    usage,
)
from daemons.front.openai_bodies import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_COMPLETION_TOKENS,
    ChatBody,
    CompletionBody,
    SharedBody,
)
from daemons.front.orders import Request, order
from daemons.front.output import Piece
from daemons.front.rooms import Call
from daemons.front.sampling import LogprobWishes
from daemons.front.validate import (
    PRIORITY_HEADER,
    PairBody,
    places,
    request_id,
    request_ids,
    timeout_s,
)
from daemons.runtime.http import invalid, json_response, read_json


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with its rooms not yet open."""

    shared: SharedBody
    envelope: Envelope
    call: Call
    answers: list[Answer]


class OpenAiApi:
    """The endpoints on their desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Go on from one prompt or several."""
        self._desk.life.admit()
        body = await read_json(request, CompletionBody)
        body.check()
        given, _ = body.prompts()
        prompts = [
            await self._desk.card.tokens(one)
            if isinstance(one, str)
            else self._desk.card.checked(one)
            for one in given
        ]
        envelope = ("cmpl", "text_completion", "text_completion")
        asked = await self._asked(
            request, envelope, prompts, body.logprob_wishes(), DEFAULT_COMPLETION_TOKENS
        )
        echoes = [self._echo(one) if body.echo else "" for one in given]
        return await self._completed(request, asked, echoes, body.logprobs)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer to messages."""
        self._desk.life.admit()
        body = await read_json(request, ChatBody)
        body.check()
        prompt = await self._desk.card.tokens(self._rendered(body), add_special_tokens=False)
        envelope = ("chatcmpl", "chat.completion", "chat.completion.chunk")
        logprobs = body.logprob_wishes()
        asked = await self._asked(
            request, envelope, [prompt], logprobs, DEFAULT_CHAT_TOKENS, body.max_completion_tokens
        )
        return await self._chatted(request, asked, logprobs.output_top)

    def _rendered(self, body: ChatBody) -> str:
        chat = self._desk.card.chat
        if chat is None:
            raise invalid("the model has no chat template; use /v1/completions")
        try:
            return chat.render(
                body.plain_messages(),
                add_generation_prompt=body.add_generation_prompt is not False,
                more=body.chat_template_kwargs,
            )
        except TemplateRefusal as error:
            raise invalid(f"messages: the chat template refuses them: {error}") from error

    def _echo(self, given: str | list[int]) -> str:
        return given if isinstance(given, str) else self._desk.card.tokenizer.decode(given)

    async def _asked(
        self,
        request: web.Request,
        envelope: tuple[str, str, str],
        prompts: Sequence[tuple[int, ...]],
        logprobs: LogprobWishes,
        default_max_tokens: int,
        max_completion_tokens: int | None = None,
    ) -> Asked:
        shared = await read_json(request, SharedBody)
        pair = await read_json(request, PairBody)
        patience_s = timeout_s(request, self._desk.config)
        found = places(pair, len(prompts), self._desk.config, request.headers.get(PRIORITY_HEADER))
        rid = request_id(request, shared.rid)
        rids = request_ids(request, rid, len(prompts))
        wishes = shared.wishes(
            shared.max_tokens if max_completion_tokens is None else max_completion_tokens
        )
        orders = [
            await order(
                self._desk, Request(place, prompt, wishes, logprobs, one), default_max_tokens
            )
            for place, prompt, one in zip(found, prompts, rids, strict=True)
        ]
        prefix, kind, chunk_kind = envelope
        model = shared.model or self._desk.config.model_name
        return Asked(
            shared,
            Envelope(f"{prefix}-{rid}", kind, chunk_kind, model),
            self._desk.call(orders, patience_s),
            [Answer(one) for one in orders],
        )

    async def _completed(
        self, request: web.Request, asked: Asked, echoes: Sequence[str], logprobs: int | None
    ) -> web.StreamResponse:
        card = self._desk.card
        makers = [CompletionLogprobs(card, logprobs) for _ in asked.answers]

        def choice(n: int, text: str, piece: Piece | Answer) -> dict[str, Any]:
            shown = makers[n].of(piece.tokens)
            return {"index": n, "text": text, "logprobs": shown, **ending(piece.end)}

        begun: set[int] = set()

        def events(n: int, piece: Piece) -> list[object]:
            asked.answers[n].add(piece)
            text = piece.text if n in begun else echoes[n] + piece.text
            begun.add(n)
            if not (text or is_worth_a_chunk(piece, logprobs)):
                return []
            return [asked.envelope.chunk([choice(n, text, piece)], **_no_usage(asked))]

        if asked.shared.stream:
            return await stream(request, asked.call, events, lambda: _usage_chunk(asked))
        await _gather(asked)
        choices = [
            choice(n, echoes[n] + "".join(answer.text), answer)
            for n, answer in enumerate(asked.answers)
        ]
        return json_response(asked.envelope.whole(choices, asked.answers))

    async def _chatted(
        self, request: web.Request, asked: Asked, logprobs: int | None
    ) -> web.StreamResponse:
        def shown(piece: Piece | Answer) -> dict[str, Any] | None:
            return None if logprobs is None else chat_logprobs(self._desk.card, piece.tokens)

        answer = asked.answers[0]

        def delta(content: dict[str, Any], piece: Piece | None) -> object:
            choice = {
                "index": 0,
                "delta": content,
                "logprobs": shown(piece) if piece and piece.tokens else None,
                **ending(piece.end if piece else None),
            }
            return asked.envelope.chunk([choice], **_no_usage(asked))

        def events(_: int, piece: Piece) -> list[object]:
            first = not answer.tokens
            answer.add(piece)
            chunks = [delta({"role": "assistant", "content": ""}, None)] if first else []
            if is_worth_a_chunk(piece, logprobs):
                chunks.append(delta({"content": piece.text} if piece.text else {}, piece))
            return chunks

        if asked.shared.stream:
            return await stream(request, asked.call, events, lambda: _usage_chunk(asked))
        await _gather(asked)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(answer.text)},
            "logprobs": shown(answer),
            **ending(answer.end),
        }
        return json_response(asked.envelope.whole([choice], asked.answers))


async def _gather(asked: Asked) -> None:
    async with asked.call:
        async for n, piece in asked.call:
            asked.answers[n].add(piece)


def _no_usage(asked: Asked) -> dict[str, object]:
    return {"usage": None} if asked.shared.usage_in_stream else {}


def _usage_chunk(asked: Asked) -> list[object]:
    if not asked.shared.usage_in_stream:
        return []
    return [asked.envelope.chunk([], usage=usage(asked.answers))]

"""``/v1/completions`` and ``/v1/chat/completions``: the same rooms in OpenAI's words.

A request of several prompts with ``n`` samples each has a room for every sample, prompt by prompt;
choices are numbered in that order. With a seed, the i-th sample of a prompt has ``seed + i``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from daemons.front.answers import Answer
from daemons.front.chat_choices import ChatChoices
from daemons.front.chat_prompt import chat_prompt
from daemons.front.completion_choices import CompletionChoices
from daemons.front.desk import Desk, stream
from daemons.front.openai_answers import Asked, Envelope
from daemons.front.openai_bodies import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_COMPLETION_TOKENS,
    chat_logprobs_of,
    check_chat,
    check_completion,
    check_shared,
    completion_logprobs,
    prompts_of,
    read_openai,
    wishes_of,
)
from daemons.front.orders import Request, order
from daemons.front.sampling import LogprobWishes, samples_of
from daemons.front.thoughts_first import thoughts_first
from daemons.front.tracing import RID, trace_id
from daemons.front.validate import (
    PRIORITY_HEADER,
    created_s,
    places,
    request_id,
    request_ids,
    timeout_s,
)
from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.protocol.api.pair import PairBody
from daemons.protocol.api.sampling_params import Wishes
from daemons.runtime.http import json_response


@dataclass(frozen=True, slots=True)
class Ask:
    """A body, its prompts already tokens."""

    request: web.Request
    shared: SharedBody
    pair: PairBody
    prompts: Sequence[tuple[int, ...]]
    wishes: Wishes
    logprobs: LogprobWishes
    default_max_tokens: int
    names: tuple[str, str, str]  # prefix of the id; "object" of an answer, of a chunk
    prompt_only: bool = False


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
        self._desk.admit()
        read = await read_openai(request, CompletionBody)
        check_shared(read.shared)
        check_completion(read.own, read.shared)
        card = self._desk.card
        given = prompts_of(read.own)
        prompts = [
            await card.tokens(one) if isinstance(one, str) else card.checked(one) for one in given
        ]
        is_empty = read.shared.max_tokens == 0
        wishes = wishes_of(read.shared, 1 if is_empty else read.shared.max_tokens)
        ask = Ask(
            request,
            read.shared,
            read.pair,
            prompts,
            wishes,
            completion_logprobs(read.own),
            DEFAULT_COMPLETION_TOKENS,
            ("cmpl", "text_completion", "text_completion"),
            is_empty,
        )
        asked = await self._asked(ask)
        echoes = [self._echo(one) if read.own.echo else None for one in given]
        of_choices = [echo for echo in echoes for _ in range(asked.samples)]
        choices = CompletionChoices(card, asked, of_choices, read.own.logprobs)
        if read.shared.stream:
            return await stream(request, asked.call, choices.events, asked.last_chunks)
        async with asked.call:
            async for n, piece in asked.call:
                asked.answers[n].add(piece)
        return json_response(choices.whole())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer to messages."""
        self._desk.admit()
        read = await read_openai(request, ChatBody)
        check_shared(read.shared)
        check_chat(read.own)
        config, card = self._desk.config, self._desk.card
        chat = chat_prompt(read.own, card, config.tool_calls, config.reasoning)
        prompt = await card.tokens(chat.text, add_special_tokens=False)
        shared, newer = read.shared, read.own.max_completion_tokens
        wishes = wishes_of(
            shared, shared.max_tokens if newer is None else newer, chat.structural_tag
        )
        if chat.thinks:
            wishes = thoughts_first(wishes, chat.place)
        ask = Ask(
            request,
            shared,
            read.pair,
            [prompt],
            wishes,
            chat_logprobs_of(read.own),
            DEFAULT_CHAT_TOKENS,
            ("chatcmpl", "chat.completion", "chat.completion.chunk"),
        )
        asked = await self._asked(ask)
        texts = [chat.answer(answer.order.key) for answer in asked.answers]
        choices = ChatChoices(card, asked, texts, ask.logprobs.output_top)
        if shared.stream:
            return await stream(request, asked.call, choices.events, asked.last_chunks)
        async with asked.call:
            async for n, piece in asked.call:
                choices.take(n, piece)
        return json_response(choices.whole())

    def _echo(self, given: str | list[int]) -> str:
        return given if isinstance(given, str) else self._desk.card.tokenizer.decode(given)

    async def _asked(self, ask: Ask) -> Asked:
        """Return the request with its orders checked, its rooms not yet open."""
        request, config, desk = ask.request, self._desk.config, self._desk
        samples, prompts = samples_of(ask.wishes), len(ask.prompts)
        patience_s = timeout_s(request, config)
        urgency = request.headers.get(PRIORITY_HEADER)
        found = places(ask.pair, prompts, config, urgency, samples=samples)
        given, trace = ask.shared.rid, trace_id(request)
        request[RID] = name = request_id(request, None if isinstance(given, list) else given)
        rids = request_ids(request, given if isinstance(given, list) else name, prompts, samples)
        orders = [
            await order(
                desk,
                Request(
                    place,
                    ask.prompts[n // samples],
                    ask.wishes,
                    ask.logprobs,
                    rid,
                    sample=n % samples,
                    prompt_only=ask.prompt_only,
                    trace=trace,
                ),
                ask.default_max_tokens,
            )
            for n, (place, rid) in enumerate(zip(found, rids, strict=True))
        ]
        prefix, kind, chunk_kind = ask.names
        model = ask.shared.model or config.model_name
        envelope = Envelope(f"{prefix}-{name}", kind, chunk_kind, model, created_s(request))
        call = desk.call(orders, patience_s)
        return Asked(ask.shared, envelope, call, [Answer(one) for one in orders], samples)

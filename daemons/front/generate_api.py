"""``POST /generate``: SGLang's own request, scalars or lists.

Every prompt of a batch is a room of its own; the first failure of one of them ends all.
Source: SGLang ``managers/io_struct.py`` ``GenerateReqInput``; what is not here yet is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from daemons.front.answers import Answer
from daemons.front.desk import Desk, stream
from daemons.front.orders import Request, order
from daemons.front.output import Order, Piece
from daemons.front.rooms import Call
from daemons.front.sampling import LogprobWishes, Wishes
from daemons.front.validate import PRIORITY_HEADER, PairBody, each, places, request_ids, timeout_s
from daemons.runtime.http import Refusal, invalid, json_response, read_json

DEFAULT_MAX_TOKENS = 128  # SGLang's
NOT_YET = (
    "image_data",
    "audio_data",
    "video_data",
    "input_embeds",
    "lora_path",
    "custom_logit_processor",
    "session_params",
    "return_hidden_states",
    "token_ids_logprob",
)


class GenerateBody(msgspec.Struct, frozen=True):
    """The body; unknown fields are let be, as SGLang's routers add some."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: Wishes | list[Wishes] | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    return_text_in_logprobs: bool | None = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    input_embeds: Any = None
    lora_path: Any = None
    custom_logit_processor: Any = None
    session_params: Any = None
    return_hidden_states: Any = None
    token_ids_logprob: Any = None


class GenerateApi:
    """The endpoint on its desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/generate", self.generate)
        app.router.add_put("/generate", self.generate)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, as a stream when it wants one."""
        self._desk.life.admit()
        body = await read_json(request, GenerateBody)
        pair = await read_json(request, PairBody)
        patience_s = timeout_s(request, self._desk.config)
        orders, batch = await self._orders(request, body, pair)
        text = self._desk.card.token_text if body.return_text_in_logprobs else None
        answers = [Answer(one, text) for one in orders]
        call = self._desk.call(orders, patience_s)
        if body.stream:
            return await self._streamed(request, call, answers, batched=batch)
        async with call:
            async for index, piece in call:
                answers[index].add(piece)
        bodies = [answer.body(_elapsed_s(call)) for answer in answers]
        return json_response(bodies if batch else bodies[0])

    async def _streamed(
        self, request: web.Request, call: Call, answers: Sequence[Answer], *, batched: bool
    ) -> web.StreamResponse:
        def events(index: int, piece: Piece) -> list[object]:
            answers[index].add(piece)
            if not piece.tokens and piece.end is None:
                return []
            body = answers[index].body(_elapsed_s(call))
            return [{**body, "index": index} if batched else body]

        def named(refusal: Refusal) -> dict[str, object]:
            rooms = [one.key.room for one in call.orders]
            known = batched and refusal.room in rooms
            return {"index": rooms.index(refusal.room or 0)} if known else {}

        return await stream(request, call, events, named=named)

    async def _orders(
        self, request: web.Request, body: GenerateBody, pair: PairBody
    ) -> tuple[list[Order], bool]:
        """Return the orders, and whether they were given as a list."""
        for name in NOT_YET:
            if getattr(body, name):
                raise invalid(f"{name} is not supported yet")
        given, batch = _given(body)
        count = len(given)
        found = places(pair, count, self._desk.config, request.headers.get(PRIORITY_HEADER))
        rids = request_ids(request, body.rid, count)
        wishes: list[Wishes] = each("sampling_params", body.sampling_params or Wishes(), count)
        logprobs = _logprob_wishes(body, count)
        prompts = [await self._prompt(prompt) for prompt in given]
        orders = [
            await order(self._desk, Request(*parts), DEFAULT_MAX_TOKENS)
            for parts in zip(found, prompts, wishes, logprobs, rids, strict=True)
        ]
        return orders, batch

    async def _prompt(self, given: str | list[int]) -> tuple[int, ...]:
        card = self._desk.card
        return await card.tokens(given) if isinstance(given, str) else card.checked(given)


def _given(body: GenerateBody) -> tuple[list[str | list[int]], bool]:
    """Return the prompts, and whether they were given as a list."""
    if (body.text is None) == (body.input_ids is None):
        raise invalid("exactly one of text and input_ids is needed")
    if isinstance(body.text, str):
        return [body.text], False
    if body.text is not None:
        if not body.text:
            raise invalid("text: an empty list")
        return list(body.text), True
    ids = body.input_ids or []
    flat = [id_ for id_ in ids if isinstance(id_, int)]
    nested = [id_ for id_ in ids if isinstance(id_, list)]
    if flat and nested:
        raise invalid("input_ids: token ids or lists of them, not both")
    return ([flat], False) if not nested else (list(nested), True)


def _logprob_wishes(body: GenerateBody, count: int) -> list[LogprobWishes]:
    start_given = -1 if body.logprob_start_len is None else body.logprob_start_len
    wanted: list[bool] = each("return_logprob", body.return_logprob or False, count)
    starts: list[int] = each("logprob_start_len", start_given, count)
    tops: list[int] = each("top_logprobs_num", body.top_logprobs_num or 0, count)
    return [
        _wish(start, top) if want else LogprobWishes()
        for want, start, top in zip(wanted, starts, tops, strict=True)
    ]


def _wish(start: int, top: int) -> LogprobWishes:
    if start < -1:
        raise invalid(f"logprob_start_len: {start}; it is -1 (output only) or a place")
    return LogprobWishes(top, None if start < 0 else top, max(start, 0))


def _elapsed_s(call: Call) -> float:
    return asyncio.get_running_loop().time() - call.begun_s

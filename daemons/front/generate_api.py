"""``POST /generate``: SGLang's own request, scalars or lists.

Every sample of every prompt is a room of its own, prompt by prompt; the first failure of one of
them ends all. With a seed, the i-th sample of a prompt has ``seed + i``.
Source: SGLang ``managers/io_struct.py`` ``GenerateReqInput``; what is not here yet is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from daemons.front.answers import Answer
from daemons.front.desk import Desk, stream
from daemons.front.orders import Request, order
from daemons.front.output import Order, Piece
from daemons.front.rooms import Call
from daemons.front.sampling import LogprobWishes, samples_of
from daemons.front.tracing import RID, trace_id
from daemons.front.validate import (
    PRIORITY_HEADER,
    each,
    places,
    request_id,
    request_ids,
    timeout_s,
)
from daemons.protocol.api.generate_body import GenerateBody
from daemons.protocol.api.pair import PairBody
from daemons.protocol.api.sampling_params import Wishes
from daemons.runtime.http import Refusal, invalid, json_response, read_json

DEFAULT_MAX_TOKENS = 128  # SGLang's
REFUSED = (
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
        self._desk.admit()
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
        """Return the orders, and whether the answer is a list."""
        for name in REFUSED:
            if getattr(body, name):
                raise invalid(f"{name}: not supported")
        given, batch = _given(body)
        count = len(given)
        wishes: list[Wishes] = each("sampling_params", body.sampling_params or Wishes(), count)
        samples = samples_of(wishes[0])
        if any(samples_of(wish) != samples for wish in wishes):
            raise invalid("sampling_params: n is one number for all prompts")
        urgency = request.headers.get(PRIORITY_HEADER)
        found = places(pair, count, self._desk.config, urgency, samples=samples)
        rid = None if isinstance(body.rid, list) else body.rid
        request[RID] = name = request_id(request, rid)
        given_rids = body.rid if isinstance(body.rid, list) else name
        rids = request_ids(request, given_rids, count, samples)
        trace = trace_id(request)
        logprobs = _logprob_wishes(body, count)
        prompts = [await self._prompt(prompt) for prompt in given]
        parts = zip(prompts, wishes, logprobs, strict=True)
        expanded = [(*part, sample) for part in parts for sample in range(samples)]
        orders = [
            await order(
                self._desk,
                Request(place, prompt, wish, wanted, rid, sample, trace=trace),
                DEFAULT_MAX_TOKENS,
            )
            for place, rid, (prompt, wish, wanted, sample) in zip(
                found, rids, expanded, strict=True
            )
        ]
        return orders, batch or samples > 1

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

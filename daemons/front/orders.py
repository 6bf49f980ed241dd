"""From a prompt, its place and its wishes to an order that a rank can take."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.front.desk import Desk
from daemons.front.output import Order
from daemons.front.sampling import LogprobWishes, sampling, stop_strings
from daemons.front.validate import Place
from daemons.protocol.api.sampling_params import Wishes
from daemons.protocol.topology import Role
from daemons.runtime.http import invalid


@dataclass(frozen=True, slots=True)
class Request:
    """One sample of a prompt of an HTTP request, brought into a form that both APIs share."""

    place: Place
    prompt: tuple[int, ...]
    wishes: Wishes
    logprobs: LogprobWishes
    rid: str
    sample: int = 0  # of the prompt's samples
    prompt_only: bool = False  # no text is wanted, only what the prompt's tokens say
    trace: str = ""  # id of the client's trace


async def order(desk: Desk, request: Request, default_max_tokens: int) -> Order:
    """Return the order, every limit checked.

    Raises:
        Refusal: 400 with what is wrong; 503 when nobody knows who serves the prompt, or grammars
            cannot be checked.
    """
    prompt, wishes = request.prompt, request.wishes
    told = sampling(
        wishes,
        request.logprobs,
        key=request.place.key,
        prompt_tokens=len(prompt),
        limit=desk.limit,
        default_max_tokens=default_max_tokens,
        card=desk.card,
        sample=request.sample,
    )
    if told.grammar is not None:
        await desk.grammars.check(told.grammar)
    start = request.logprobs.prompt_start
    if start >= len(prompt):
        raise invalid(f"logprob_start_len: {start}, the prompt has {len(prompt)} tokens")
    return Order(
        request.place.key,
        prompt,
        told,
        await desk.prefill_of(request.place),
        request.rid,
        stop_strings(wishes),
        priority=request.place.priority,
        cache_salt=request.place.cache_salt,
        skip_special_tokens=wishes.skip_special_tokens is not False,
        keep_stop=wishes.no_stop_trim is True,
        prompt_only=request.prompt_only,
        trace=request.trace,
        hands_over=desk.config.role is Role.PREFILL,
    )

"""How a client says what it wants of the sampler, and what the rank is told.

The names are SGLang's (``sampling_params``); OpenAI's bodies are brought into the same form. All
limits are those of ``protocol.generate.Sampling`` and equal on prefill and decode.
Source: SGLang ``sampling/sampling_params.py``; there ``top_k`` and ``stop`` are rewritten in place.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from daemons.front.model_card import ModelCard
from daemons.front.validate import too_long
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import invalid

GREEDY_BELOW = 1e-6  # a smaller temperature is 0
STOPS_LIMIT = 64  # stop strings of one request
STOP_LENGTH_LIMIT = 1024  # characters of one stop string
STOP_TOKENS_LIMIT = 256

Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NOT_YET = ("json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "logit_bias")


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SGLang's ``sampling_params``; null means absent."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    sampling_seed: Seed | None = None  # SGLang's name of seed
    n: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # taken, without effect
    no_stop_trim: bool | None = None
    stream_interval: int | None = None  # taken, without effect
    custom_params: Any = None  # taken, without effect
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    stop_regex: Any = None
    logit_bias: Any = None


class LogprobWishes(msgspec.Struct, frozen=True):
    """Which log-probabilities a client wants; None: none."""

    output_top: int | None = None
    prompt_top: int | None = None
    prompt_start: int = 0


def stop_strings(wishes: Wishes) -> tuple[str, ...]:
    """Return the stop strings, in the client's order.

    Raises:
        Refusal: an empty one, too long a one, or too many.
    """
    given = wishes.stop
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > STOPS_LIMIT:
        raise invalid(f"stop: {len(stops)} strings, the limit is {STOPS_LIMIT}")
    if any(not 0 < len(stop) <= STOP_LENGTH_LIMIT for stop in stops):
        raise invalid(f"stop: each string has 1 to {STOP_LENGTH_LIMIT} characters")
    return stops


def sampling(
    wishes: Wishes,
    logprobs: LogprobWishes,
    *,
    key: RoomKey,
    prompt_tokens: int,
    limit: int,
    default_max_tokens: int,
    card: ModelCard,
) -> Sampling:
    """Return what the rank is told.

    Args:
        limit: longest prompt + output, in tokens.
        default_max_tokens: for a client that says none; shortened to what ``limit`` leaves.

    Raises:
        Refusal: 400, with the name of the parameter or both lengths.
    """
    _refuse_not_yet(wishes)
    top_k = -1 if wishes.top_k is None else wishes.top_k
    if top_k < -1 or top_k == 0:
        raise invalid(f"top_k: {top_k}; it is -1 (all) or at least 1")
    if wishes.top_p is not None and wishes.top_p <= 0:
        raise invalid(f"top_p: {wishes.top_p}; it is above 0 and at most 1")
    if len(wishes.stop_token_ids or ()) > STOP_TOKENS_LIMIT:
        raise invalid(f"stop_token_ids: at most {STOP_TOKENS_LIMIT}")
    values = {
        "max_tokens": _max_tokens(wishes.max_new_tokens, prompt_tokens, limit, default_max_tokens),
        "min_tokens": wishes.min_new_tokens,
        "temperature": wishes.temperature,
        "top_p": wishes.top_p,
        "top_k": -1 if top_k >= card.vocabulary else top_k,
        "min_p": wishes.min_p,
        "repetition_penalty": wishes.repetition_penalty,
        "frequency_penalty": wishes.frequency_penalty,
        "presence_penalty": wishes.presence_penalty,
        "seed": _seed(wishes, key),
        "stop_token_ids": wishes.stop_token_ids,
        "eos_token_ids": card.eos_token_ids,
        "ignore_eos": wishes.ignore_eos,
        "logprobs": logprobs.output_top,
        "prompt_logprobs": logprobs.prompt_top,
        "prompt_logprobs_start": logprobs.prompt_start,
    }
    try:
        told = msgspec.convert({k: v for k, v in values.items() if v is not None}, Sampling)
    except msgspec.ValidationError as error:
        raise invalid(f"sampling: {error}") from error
    if told.min_tokens > told.max_tokens:
        raise invalid(f"min_new_tokens: {told.min_tokens}, above max_new_tokens {told.max_tokens}")
    if told.temperature < GREEDY_BELOW:
        told = msgspec.structs.replace(told, temperature=0.0)
    return told


def _refuse_not_yet(wishes: Wishes) -> None:
    for name in NOT_YET:
        if getattr(wishes, name):
            raise invalid(f"{name} is not supported yet")
    if wishes.n not in (None, 1):
        raise invalid(f"n: {wishes.n} is not supported yet, only 1")


def _max_tokens(asked: int | None, prompt_tokens: int, limit: int, default: int) -> int:
    left = limit - prompt_tokens
    if left < 1:
        raise too_long(f"the prompt has {prompt_tokens} tokens, the limit is {limit - 1}")
    if asked is None:
        return min(default, left)
    if asked > left:
        raise too_long(
            f"{prompt_tokens} prompt tokens and {asked} new ones are"
            f" {prompt_tokens + asked}, the limit is {limit}"
        )
    return asked


def _seed(wishes: Wishes, key: RoomKey) -> int:
    """Return the client's seed, else the room: both legs then draw from the same one."""
    given = wishes.sampling_seed if wishes.sampling_seed is not None else wishes.seed
    return (key.room if given is None else given) & (2**63 - 1)

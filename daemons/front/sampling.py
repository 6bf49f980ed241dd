"""How a client says what it wants of the sampler, and what the rank is told.

The names are SGLang's (``sampling_params``); OpenAI's bodies are brought into the same form. All
limits are those of ``protocol.generate.Sampling`` and equal on prefill and decode.
Source: SGLang ``sampling/sampling_params.py``; there ``top_k`` and ``stop`` are rewritten in place.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.front.model_card import ModelCard
from daemons.front.validate import too_long
from daemons.protocol.api.sampling_params import Wishes
from daemons.protocol.generate import BIASES_LIMIT, Grammar, GrammarKind, Sampling
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import invalid

GREEDY_BELOW = 1e-6  # a smaller temperature is 0
STOPS_LIMIT = 64  # stop strings of one request
STOP_LENGTH_LIMIT = 1024  # characters of one stop string
STOP_TOKENS_LIMIT = 256

SAMPLES_LIMIT = 128  # OpenAI's
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class LogprobWishes(msgspec.Struct, frozen=True):
    """Which log-probabilities a client wants; None: none."""

    output_top: int | None = None
    prompt_top: int | None = None
    prompt_start: int = 0


def samples_of(wishes: Wishes) -> int:
    """Return how many texts each prompt gets.

    Raises:
        Refusal: fewer than one, or too many.
    """
    samples = 1 if wishes.n is None else wishes.n
    if not 1 <= samples <= SAMPLES_LIMIT:
        raise invalid(f"n: {samples}; it is 1 to {SAMPLES_LIMIT}")
    return samples


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
    sample: int = 0,
) -> Sampling:
    """Return what the rank is told.

    Args:
        sample: which of the prompt's ``n`` samples this is, from 0; its seed is the client's plus
            this number, so that each can be had again alone.
        limit: longest prompt + output, in tokens.
        default_max_tokens: for a client that says none; shortened to what ``limit`` leaves.

    Raises:
        Refusal: 400, with the name of the parameter or both lengths.
    """
    if wishes.stop_regex:
        raise invalid("stop_regex: not supported")
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
        "seed": _seed(wishes, key, sample),
        "stop_token_ids": wishes.stop_token_ids,
        "eos_token_ids": card.eos_token_ids,
        "ignore_eos": wishes.ignore_eos,
        "grammar": grammar_of(wishes),
        "logit_bias": _biases(wishes, card),
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


def grammar_of(wishes: Wishes) -> Grammar | None:
    """Return the one grammar that the text must keep to, if there is one.

    Raises:
        Refusal: there are two, or its text is too long.
    """
    given = {name: getattr(wishes, name) for name in GRAMMARS if getattr(wishes, name) is not None}
    if wishes.json_object:
        given["json"] = ""
    if len(given) > 1:
        raise invalid(f"{', '.join(given)}: a text keeps to one of them")
    for name, text in given.items():
        said = text if isinstance(text, str) else msgspec.json.encode(text).decode()
        try:
            return msgspec.convert({"kind": GrammarKind(name), "text": said}, Grammar)
        except msgspec.ValidationError as error:
            raise invalid(f"{name}: {error}") from error
    return None


def _biases(wishes: Wishes, card: ModelCard) -> tuple[tuple[int, float], ...]:
    given = wishes.logit_bias or {}
    if len(given) > BIASES_LIMIT:
        raise invalid(f"logit_bias: {len(given)} tokens, the limit is {BIASES_LIMIT}")
    biases = []
    for word, bias in given.items():
        if not (word.isascii() and word.isdigit()) or int(word[:20]) >= card.vocabulary:
            raise invalid(f"logit_bias: {word[:40]!r} is no token id, 0 to {card.vocabulary - 1}")
        biases.append((int(word), bias))
    return tuple(biases)


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


def _seed(wishes: Wishes, key: RoomKey, sample: int) -> int:
    """Return the client's seed for a sample, else the room: both legs then draw from the same."""
    given: Any = wishes.sampling_seed if wishes.sampling_seed is not None else wishes.seed
    return (key.room if given is None else given + sample) & (2**63 - 1)

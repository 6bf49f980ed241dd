"""Choose tokens: exact definitions, in the order in which they are written here.

Raw logits, then penalties, then ``min_tokens``; at temperature 0 the largest wins (the lowest id
among equals). Otherwise temperature, ``top_k``, ``top_p`` over what that left, ``min_p`` against
the likeliest, and one draw.

A draw depends on the seed and on the index of the output token and on nothing else: not on the
batch, the process or the device. So a room that changes hands goes on as if it had not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Several

import torch

from daemons.engine.room import RoomState

_CANDIDATES = (256, 4096)  # top_p is looked for among so many first; sorting all costs far more
_MANTISSA_BITS = 53


def choose(logits: torch.Tensor, states: Several[RoomState]) -> list[int]:
    """Return the next token of each room; the rooms are not changed.

    Args:
        logits: raw, fp32 ``[rooms, vocabulary]``, finite.
        states: the rooms, in the same order.
    """
    best = logits.argmax(dim=-1).tolist()
    return [
        best[row] if is_plain(state) else choose_one(logits[row].cpu(), state)
        for row, state in enumerate(states)
    ]


def is_plain(state: RoomState) -> bool:
    """Say whether the room takes the largest raw logit."""
    return (
        state.asked.sampling.temperature == 0
        and state.seen is None
        and state.counts is None
        and len(state.output) >= state.asked.sampling.min_tokens
    )


def choose_one(logits: torch.Tensor, state: RoomState) -> int:
    """Return the next token of one room from its raw logits, fp32 ``[vocabulary]`` on the CPU."""
    sampling = state.asked.sampling
    scores = _without_ends(_penalised(logits, state), state)
    if sampling.temperature == 0:
        return int(scores.argmax())
    # The largest is subtracted first, so that a temperature near 0 cannot overflow.
    weights = ((scores - scores.max()).double() / sampling.temperature).softmax(dim=-1)
    weights, ids = _nucleus(weights, top_k=sampling.top_k, top_p=sampling.top_p)
    if sampling.min_p > 0:
        weights = weights.where(weights >= sampling.min_p * weights.max(), 0.0)
    return _draw(weights, ids, uniform(sampling.seed, len(state.output)))


def uniform(seed: int, index: int) -> float:
    """Return a number in [0, 1) that depends on both arguments, evenly spread."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS)


def _penalised(logits: torch.Tensor, state: RoomState) -> torch.Tensor:
    """Repetition over prompt and output (as transformers does it), the others over the output.

    Source: frequency and presence as OpenAI's API reference defines them.
    """
    sampling = state.asked.sampling
    if state.seen is not None:
        penalty = sampling.repetition_penalty
        lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(state.seen, lowered, logits)
    if state.counts is not None:
        logits = logits - sampling.frequency_penalty * state.counts
        logits = logits - sampling.presence_penalty * (state.counts > 0).float()
    return logits


def _without_ends(scores: torch.Tensor, state: RoomState) -> torch.Tensor:
    sampling = state.asked.sampling
    if len(state.output) >= sampling.min_tokens:
        return scores
    ends = [token for token in sampling.ending_token_ids if token < len(scores)]
    if not ends or len(ends) == len(scores):
        return scores
    return scores.index_fill(0, torch.tensor(ends), float("-inf"))


def _nucleus(
    weights: torch.Tensor, *, top_k: int, top_p: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weights that ``top_k`` and ``top_p`` leave, with their ids (None: all, in order).

    ``top_p`` keeps the smallest number of likeliest tokens whose share reaches it, at least one.
    """
    limited = 0 < top_k < len(weights)
    if top_p >= 1:
        return weights.topk(top_k) if limited else (weights, None)
    for count in (top_k,) if limited else (*_CANDIDATES, len(weights)):
        likeliest, ids = weights.topk(min(count, len(weights)))
        wanted = top_p * (likeliest if limited else weights).sum()
        sums = likeliest.cumsum(0)
        if limited or sums[-1] >= wanted:
            break
    kept = max(1, int((sums - likeliest < wanted).sum()))
    return likeliest[:kept], ids[:kept]


def _draw(weights: torch.Tensor, ids: torch.Tensor | None, share: float) -> int:
    sums = weights.cumsum(0)
    # right: a weight of 0 is never hit, not even by a share of exactly 0.
    place = int(torch.searchsorted(sums, share * sums[-1], right=True))
    if place == len(sums):  # the product rounded up to the whole sum
        place = int(weights.nonzero()[-1])
    return place if ids is None else int(ids[place])

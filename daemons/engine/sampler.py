"""Choose tokens: exact definitions, in the order in which they are written here.

1. ``repetition_penalty`` p over the tokens of prompt and output: a positive logit is divided by p,
   another one multiplied (transformers' ``RepetitionPenaltyLogitsProcessor``).
2. ``frequency_penalty`` times the token's count in the output is subtracted, and
   ``presence_penalty`` once if it is in there at all (OpenAI's API reference).
3. ``logit_bias`` is added (OpenAI's, to the logits, whatever the temperature).
4. The grammar: tokens that it does not allow here are out.
5. Tokens that end the text are out until ``min_tokens`` are there, and with ``ignore_eos`` those
   that only a grammar ends with; but never the last ones that are left.
6. At ``temperature`` 0 the largest wins, the lowest id among equals. Else logits are divided by it.
7. ``top_k``: the k likeliest, the lowest ids among equals; never more than k.
8. ``top_p``: the fewest likeliest of those that are left whose share of them reaches it, at least
   one, with the lowest ids among equals (transformers' ``TopPLogitsWarper``, after its top-k).
9. ``min_p``: those at least so likely as this share of the likeliest.
10. One draw: the tokens that are left share [0, 1) in order of their ids, each as much as it is
    likely; :func:`uniform` of the seed and the token's place in the output says whose it is.

vLLM applies ``min_p`` before 7 and 8, SGLang takes 7 and 8 of one distribution together; each of
the three alone means the same everywhere.

So a draw depends on the room's logits, its seed and the place, and on nothing else: not on the
batch, the process or the device. A room that changes hands goes on as if it had not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch

from daemons.engine.grammar import BadGrammar, forbidden, hold_back, new_bits
from daemons.engine.room import RoomState
from daemons.protocol.generate import Distribution

NOT_FINITE = "the model's logits are not finite"
NO_TOKEN = "no token is left to choose from"
FEW = 1024  # a top_k up to this looks at so many candidates only
_CANDIDATES = (256, 4096)  # top_p is looked for among so many first; sorting all costs far more
_ROWS = 64  # rooms of one pass, for memory's sake
_MANTISSA_BITS = 53
_OUT = float("-inf")


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a room, or (``error``) why nothing could be.

    Attributes:
        logs: log-probabilities of what was drawn from, ``[tokens]``; for rooms that want them.
        ids: the tokens of ``logs``; None: all of the vocabulary.
    """

    token: int = -1
    error: str = ""
    logs: torch.Tensor | None = None
    ids: torch.Tensor | None = None


def choose(logits: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    """Return the next token of each room; the rooms are not changed.

    Args:
        logits: raw, fp32 ``[rooms, vocabulary]``; not changed.
        states: the rooms, in the same order.
    """
    largest, best = logits.max(dim=-1)  # the largest of a NaN is a NaN
    # One transfer for both: ids are exact in fp64.
    values, ids = torch.stack((largest.double(), best.double())).tolist()
    choices = [
        Choice(int(token)) if abs(value) < float("inf") else Choice(error=NOT_FINITE)
        for value, token in zip(values, ids, strict=True)
    ]
    rows = [
        row
        for row, (state, choice) in enumerate(zip(states, choices, strict=True))
        if not choice.error and not is_plain(state)
    ]
    for first in range(0, len(rows), _ROWS):
        some = rows[first : first + _ROWS]
        scores = logits[torch.tensor(some, device=logits.device)]  # a copy
        for row, choice in zip(some, _choose(scores, [states[r] for r in some]), strict=True):
            choices[row] = choice
    return choices


def is_plain(state: RoomState) -> bool:
    """Say whether the room takes the largest raw logit, and wants to know no more."""
    sampling = state.asked.sampling
    return (
        sampling.temperature == 0
        and state.seen is None
        and state.counts is None
        and state.bias is None
        and state.walk is None
        and len(state.output) >= sampling.min_tokens
        and not _is_told(state)
    )


def uniform(seed: int, index: int) -> float:
    """Return a number in [0, 1) that depends on both arguments, evenly spread."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS)


def _is_told(state: RoomState) -> bool:
    """Say whether the room wants log-probabilities of what was drawn from."""
    sampling = state.asked.sampling
    return sampling.logprobs is not None and sampling.logprobs_of is Distribution.SAMPLED


def _choose(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    """Return the choices of rooms that are not plain; ``scores`` is used up."""
    errors = _shape(scores, states)
    left = (scores.amax(dim=-1) > _OUT).tolist()
    errors = [why or ("" if any_ else NO_TOKEN) for why, any_ in zip(errors, left, strict=True)]
    groups: dict[str, list[int]] = {}
    for row, (state, error) in enumerate(zip(states, errors, strict=True)):
        groups.setdefault("" if error else _kind(state, scores.shape[1]), []).append(row)
    choices = [Choice(error=error) for error in errors]
    for kind, rows in groups.items():
        if not kind:
            continue
        some = [states[row] for row in rows]
        own = scores if len(rows) == len(states) else scores[torch.tensor(rows)]
        draw = {"best": _best, "few": _draw_from_few, "all": _draw_from_all}[kind]
        for row, choice in zip(rows, draw(own, some), strict=True):
            choices[row] = choice
    return choices


def _kind(state: RoomState, vocabulary: int) -> str:
    sampling = state.asked.sampling
    if sampling.temperature == 0:
        return "best"
    return "few" if 0 < sampling.top_k <= min(FEW, vocabulary) else "all"


# --- steps 1 to 5 --------------------------------------------------------------------------------


def _shape(scores: torch.Tensor, states: Several[RoomState]) -> list[str]:
    """Bring penalties, biases, grammars and ends into the scores; returns errors by room."""
    for row, state in enumerate(states):
        _penalise(scores[row], state)
    errors = [""] * len(states)
    guided = [row for row, state in enumerate(states) if state.walk is not None]
    if guided:
        _guide(scores, states, guided, errors)
    for row, state in enumerate(states):
        if state.walk is None:
            _hold_ends_back(scores[row], state)
    return errors


def _penalise(scores: torch.Tensor, state: RoomState) -> None:
    sampling = state.asked.sampling
    if state.seen is not None:
        penalty = sampling.repetition_penalty
        lowered = torch.where(scores > 0, scores / penalty, scores * penalty)
        torch.where(state.seen, lowered, scores, out=scores)
    if state.counts is not None:
        scores -= sampling.frequency_penalty * state.counts
        scores -= sampling.presence_penalty * (state.counts > 0)
    if state.bias is not None:
        tokens, values = state.bias
        scores.index_add_(0, tokens, values)


def _guide(
    scores: torch.Tensor, states: Several[RoomState], rows: list[int], errors: list[str]
) -> None:
    vocabulary = scores.shape[1]
    bits = new_bits(len(rows), vocabulary)
    for place, row in enumerate(rows):
        state = states[row]
        assert state.walk is not None
        try:
            state.walk.allow(bits, place)
        except (BadGrammar, RuntimeError) as error:
            errors[row] = str(error)
            continue
        if _ends_are_early(state) or state.asked.sampling.ignore_eos:
            hold_back(bits[place], [end for end in state.ends if end < vocabulary])
    where = torch.tensor(rows, device=scores.device)
    scores[where] = scores[where].masked_fill(forbidden(bits.to(scores.device), vocabulary), _OUT)


def _hold_ends_back(scores: torch.Tensor, state: RoomState) -> None:
    if not _ends_are_early(state):
        return
    ends = [token for token in state.ends if token < len(scores)]
    if ends and len(ends) < len(scores):
        scores.index_fill_(0, torch.tensor(ends, device=scores.device), _OUT)


def _ends_are_early(state: RoomState) -> bool:
    return len(state.output) < state.asked.sampling.min_tokens


# --- steps 6 to 10 -------------------------------------------------------------------------------


def _best(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    tokens = scores.argmax(dim=-1).tolist()
    return [
        Choice(token, logs=row.log_softmax(dim=-1) if _is_told(state) else None)
        for token, row, state in zip(tokens, scores, states, strict=True)
    ]


def _draw_from_few(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    """Draw for rooms with a small ``top_k``."""
    top_k = _column(scores, [state.asked.sampling.top_k for state in states])
    values, ids = _likeliest(scores, max(state.asked.sampling.top_k for state in states))
    places = torch.arange(values.shape[1], device=scores.device)
    values = values.double().masked_fill(places >= top_k, _OUT)
    weights = ((values - values[:, :1]) / _temperatures(scores, states)).softmax(dim=-1)
    top_p = _column(scores, [state.asked.sampling.top_p for state in states])
    min_p = _column(scores, [state.asked.sampling.min_p for state in states])
    sums = weights.cumsum(dim=-1)
    reached = (sums - weights >= top_p * sums[:, -1:]) & (top_p < 1)
    reached[:, 0] = False
    weights = weights.masked_fill(reached | (weights < min_p * weights[:, :1]), 0.0)
    ids, order = ids.sort(dim=-1)
    return _draw(weights.gather(1, order), states, ids)


def _likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest scores, largest first, lowest ids first among equals, with their ids."""
    values, ids = scores.topk(count, dim=-1)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    # topk may have taken any of those that equal the last one.
    last = values[:, -1:]
    torn = ((scores >= last).sum(dim=-1) > count) & (last.squeeze(1) > _OUT)
    for row in torn.nonzero().flatten().tolist():
        some = (scores[row] >= last[row]).nonzero().flatten()  # in order of their ids
        ordered, places = scores[row, some].sort(descending=True, stable=True)
        values[row], ids[row] = ordered[:count], some[places[:count]]
    return values, ids


def _draw_from_all(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    """Draw for rooms whose choice is not limited, or by ``top_p`` and ``min_p`` only."""
    for row, state in enumerate(states):
        if FEW < state.asked.sampling.top_k < scores.shape[1]:
            ids = _likeliest(scores[row : row + 1], state.asked.sampling.top_k)[1][0]
            kept = torch.full_like(scores[row], _OUT)
            kept[ids] = scores[row, ids]
            scores[row] = kept
    largest = scores.amax(dim=-1, keepdim=True)
    # The largest is subtracted first, so that a temperature near 0 cannot overflow.
    weights = ((scores - largest) / _temperatures(scores, states).float()).softmax(dim=-1)
    for row, state in enumerate(states):
        if state.asked.sampling.top_p < 1:
            _keep_nucleus(weights[row], state.asked.sampling.top_p)
    if any(state.asked.sampling.min_p > 0 for state in states):
        min_p = _column(scores, [state.asked.sampling.min_p for state in states])
        weights.masked_fill_(weights < min_p * weights.amax(dim=-1, keepdim=True), 0.0)
    return _draw(weights, states, None)


def _keep_nucleus(weights: torch.Tensor, top_p: float) -> None:
    """Zero the weights, ``[vocabulary]``, that ``top_p`` leaves out."""
    wanted = top_p * weights.cumsum(0, dtype=torch.float64)[-1]
    for count in (*_CANDIDATES, len(weights)):
        likeliest = weights.topk(min(count, len(weights)))[0]
        sums = likeliest.cumsum(0, dtype=torch.float64)
        if count >= len(weights) or sums[-1] >= wanted:
            break
    kept = max(1, int((sums - likeliest < wanted).sum()))
    least = likeliest[kept - 1]
    equal = weights == least
    excess = int((weights >= least).sum()) - kept
    out = weights < least
    if excess:
        out |= equal & (equal.cumsum(0) > int(equal.sum()) - excess)
    weights.masked_fill_(out, 0.0)


def _draw(
    weights: torch.Tensor, states: Several[RoomState], ids: torch.Tensor | None
) -> list[Choice]:
    """Draw from weights ``[rooms, tokens]`` in order of their ids; ``ids`` None: they are all."""
    shares = [uniform(state.asked.sampling.seed, len(state.output)) for state in states]
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:].contiguous()
    # right: a weight of 0 is never hit, not even by a share of exactly 0.
    places = torch.searchsorted(sums, _column(weights, shares) * total, right=True)
    # The product may round up to the whole sum: then the last token that weighs anything.
    places = places.minimum(torch.searchsorted(sums, total))
    tokens = (places if ids is None else ids.gather(1, places)).flatten().tolist()
    choices = []
    for row, (token, state) in enumerate(zip(tokens, states, strict=True)):
        if not _is_told(state):
            choices.append(Choice(token))
            continue
        logs = (weights[row] / total[row]).log()
        choices.append(Choice(token, logs=logs, ids=None if ids is None else ids[row]))
    return choices


def _temperatures(like: torch.Tensor, states: Several[RoomState]) -> torch.Tensor:
    return _column(like, [state.asked.sampling.temperature for state in states])


def _column(like: torch.Tensor, values: Several[float]) -> torch.Tensor:
    """Return numbers by room, fp64 ``[rooms, 1]``."""
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)

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

A score of 3 and 5 is rounded to fp32 once; a token's weight is exp((score - largest) / temperature)
in fp64, and so are all sums. So the compiled kernels (``daemons.engine.native.sampler``), which add
in another order, choose the same.

vLLM applies ``min_p`` before 7 and 8, SGLang takes 7 and 8 of one distribution together; each of
the three alone means the same everywhere.

So a draw depends on the room's logits, its seed and the place, and on nothing else: not on the
batch, the process or the device. A room that changes hands goes on as if it had not.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Protocol

import torch

from daemons.engine.grammar import BadGrammar, forbidden, hold_back, new_bits
from daemons.engine.logprobs import Choice, likeliest, token_logprobs, told
from daemons.engine.room import RoomState
from daemons.protocol.generate import Distribution, TokenOut

NOT_FINITE = "the model's logits are not finite"
NO_TOKEN = "no token is left to choose from"
FEW = 1024  # a top_k up to this looks at so many candidates only
_HEAVY = (1e-2, 1e-4, 1e-8, 0.0)  # top_p is looked for among these weights first
_ROWS = 64  # rooms of one pass, for memory's sake
_MANTISSA_BITS = 53
_OUT = float("-inf")
_NO_BITS = torch.empty(0, 0, dtype=torch.int32)
_COLDEST = 1e300  # 1 / temperature: an infinity times 0 would be no number


class Sampler(Protocol):
    """Chooses tokens and says how likely they are; nothing of a room is changed."""

    def choose(self, logits: torch.Tensor, rooms: Several[RoomState]) -> list[TokenOut | str]:
        """Return the next token of each room, or why there is none.

        Args:
            logits: raw, fp32 ``[rooms, vocabulary]``; not changed.
            rooms: in the same order.
        """

    def judge(
        self, logits: torch.Tensor, tokens: Several[int], tops: Several[int]
    ) -> list[TokenOut]:
        """Return each token with its raw log-probability and those of so many of the likeliest."""


class TorchSampler:
    """The sampler on any device, by torch."""

    def choose(self, logits: torch.Tensor, rooms: Several[RoomState]) -> list[TokenOut | str]:
        """Return the next token of each room, or why there is none."""
        return told(logits, choose(logits, rooms), rooms)

    def judge(
        self, logits: torch.Tensor, tokens: Several[int], tops: Several[int]
    ) -> list[TokenOut]:
        """Return each token with its raw log-probability and those of so many of the likeliest."""
        return token_logprobs(logits, tokens, tops)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What grammars allow.

    Attributes:
        bits: int32 ``[rooms with a grammar, ceil(vocabulary / 32)]`` on the CPU.
        places: the row of ``bits`` of each room whose grammar could say; by its place in the batch.
        errors: why it could not, by the same.
    """

    bits: torch.Tensor
    places: dict[int, int]
    errors: dict[int, str]


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
        and state.said is None
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
    guided = _shape(scores, states)
    errors = [
        guided.errors.get(row) or _fault(largest)
        for row, largest in enumerate(scores.amax(dim=-1).tolist())
    ]
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


def _fault(largest: float) -> str:
    if largest == _OUT:
        return NO_TOKEN
    return "" if abs(largest) < float("inf") else NOT_FINITE


# --- steps 1 to 5 --------------------------------------------------------------------------------


def allowed(states: Several[RoomState], vocabulary: int) -> Allowed:
    """Return what the rooms' grammars allow, ends that come too early taken out."""
    rows = [row for row, state in enumerate(states) if state.walk is not None]
    found = Allowed(new_bits(len(rows), vocabulary) if rows else _NO_BITS, {}, {})
    for place, row in enumerate(rows):
        state = states[row]
        assert state.walk is not None
        try:
            state.walk.allow(found.bits, place)
        except (BadGrammar, RuntimeError) as error:
            found.errors[row] = str(error)
            continue
        found.places[row] = place
        if _ends_are_early(state) or state.asked.sampling.ignore_eos:
            hold_back(found.bits[place], [end for end in state.ends if end < vocabulary])
    return found


def ends_to_hold_back(state: RoomState, vocabulary: int) -> list[int]:
    """Return the tokens that may not end a text yet, of a room without a grammar."""
    if state.walk is not None or not _ends_are_early(state):
        return []
    ends = [token for token in state.ends if token < vocabulary]
    return ends if len(ends) < vocabulary else []


def _shape(scores: torch.Tensor, states: Several[RoomState]) -> Allowed:
    """Bring penalties, biases, grammars and ends into the scores; returns what grammars said."""
    vocabulary = scores.shape[1]
    _penalise(scores, states)
    _add_biases(scores, states)
    guided = allowed(states, vocabulary)
    if guided.places:
        where = torch.tensor(list(guided.places), device=scores.device)
        bits = guided.bits[list(guided.places.values())].to(scores.device)
        scores[where] = scores[where].masked_fill(forbidden(bits, vocabulary), _OUT)
    out = [
        (row, token)
        for row, state in enumerate(states)
        for token in ends_to_hold_back(state, vocabulary)
    ]
    if out:
        rows, tokens = torch.tensor(out, device=scores.device).unbind(1)
        scores[rows, tokens] = _OUT
    return guided


def _penalise(scores: torch.Tensor, states: Several[RoomState]) -> None:
    """Lower what was said, in all rooms at once; products of two fp32 are exact in fp64."""
    found = [(row, state, state.said) for row, state in enumerate(states) if state.said]
    if not any(said.tokens for _, _, said in found):
        return
    tokens, counts = array("i"), array("i")
    for _, _, said in found:
        tokens.extend(said.tokens)
        counts.extend(said.counts)
    asked = [state.asked.sampling for _, state, _ in found]
    sizes = torch.tensor([len(said.tokens) for _, _, said in found])
    # [said tokens of all rooms], each with what its room asked for
    rows = torch.tensor([row for row, _, _ in found]).repeat_interleave(sizes).to(scores.device)
    repetition, frequency, presence = (
        torch.tensor(values).double().repeat_interleave(sizes).to(scores.device)
        for values in (
            [one.repetition_penalty for one in asked],
            [one.frequency_penalty for one in asked],
            [one.presence_penalty for one in asked],
        )
    )
    ids = torch.frombuffer(tokens, dtype=torch.int32).long().to(scores.device)
    often = torch.frombuffer(counts, dtype=torch.int32).to(scores.device)
    own = scores[rows, ids].double()
    own = torch.where(own > 0, own / repetition, own * repetition)
    own = own - frequency * often - presence * (often > 0)
    scores[rows, ids] = own.float()


def _add_biases(scores: torch.Tensor, states: Several[RoomState]) -> None:
    found = [(row, *state.bias) for row, state in enumerate(states) if state.bias]
    if not found:
        return
    rows, tokens, values = [], array("i"), array("f")
    for row, own, biases in found:
        rows += [row] * len(own)
        tokens.extend(own)
        values.extend(biases)
    where = torch.tensor(rows, device=scores.device)
    ids = torch.frombuffer(tokens, dtype=torch.int32).long().to(scores.device)
    scores[where, ids] += torch.frombuffer(values, dtype=torch.float32).to(scores.device)


def _ends_are_early(state: RoomState) -> bool:
    return len(state.output) < state.asked.sampling.min_tokens


# --- steps 6 to 10 -------------------------------------------------------------------------------


def _best(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    tokens = scores.argmax(dim=-1).tolist()
    return [
        Choice(token, logs=row.double().log_softmax(dim=-1) if _is_told(state) else None)
        for token, row, state in zip(tokens, scores, states, strict=True)
    ]


def _draw_from_few(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    """Draw for rooms with a small ``top_k``."""
    top_k, top_p, min_p = _columns(
        scores,
        [
            (asked.top_k, asked.top_p, asked.min_p)
            for asked in (state.asked.sampling for state in states)
        ],
    )
    values, ids = likeliest(scores, max(state.asked.sampling.top_k for state in states))
    places = torch.arange(values.shape[1], device=scores.device)
    values = values.double().masked_fill(places >= top_k, _OUT)
    weights = _weights(values, values[:, :1], states)
    before = _sums_before(weights)
    reached = (before >= top_p * (before[:, -1:] + weights[:, -1:])) & (top_p < 1)
    reached[:, 0] = False
    weights = weights.masked_fill(reached | (weights < min_p), 0.0)
    ids, order = ids.sort(dim=-1)
    return _draw(weights.gather(1, order), states, ids)


def _draw_from_all(scores: torch.Tensor, states: Several[RoomState]) -> list[Choice]:
    """Draw for rooms whose choice is not limited, or by ``top_p`` and ``min_p`` only."""
    asked = [state.asked.sampling for state in states]
    for row, one in enumerate(asked):
        if FEW < one.top_k < scores.shape[1]:
            values, ids = likeliest(scores[row : row + 1], one.top_k)
            scores[row] = _OUT
            scores[row, ids[0]] = values[0]
    weights = _weights(scores, scores.amax(dim=-1, keepdim=True), states)
    for row, one in enumerate(asked):
        if one.top_p < 1:
            _keep_nucleus(scores[row], weights[row], one.top_p)
    if any(one.min_p > 0 for one in asked):
        (min_p,) = _columns(scores, [(one.min_p,) for one in asked])
        weights.masked_fill_(weights < min_p, 0.0)
    return _draw(weights, states, None)


def _keep_nucleus(scores: torch.Tensor, weights: torch.Tensor, top_p: float) -> None:
    """Zero the weights, both ``[vocabulary]``, that ``top_p`` leaves out."""
    wanted = top_p * weights.sum()
    for least in _HEAVY:
        ids = (weights >= least).nonzero().flatten()  # ascending
        heavy = weights[ids]
        if least == 0 or heavy.sum() >= wanted:
            break
    order = scores[ids].sort(descending=True, stable=True)[1]
    before = _sums_before(heavy[order].unsqueeze(0))
    kept = order[: max(1, int((before < wanted).sum()))]
    weights.zero_()
    weights[ids[kept]] = heavy[kept]


def _weights(
    scores: torch.Tensor, largest: torch.Tensor, states: Several[RoomState]
) -> torch.Tensor:
    """Return the weights of scores, fp64 of the same shape; the largest weighs 1."""
    asked = [state.asked.sampling.temperature for state in states]
    (inverse,) = _columns(
        scores, [(min(1 / one, _COLDEST) if one > 0 else _COLDEST,) for one in asked]
    )
    return scores.sub(largest.double()).mul_(inverse).exp_()


def _sums_before(weights: torch.Tensor) -> torch.Tensor:
    """Return for each weight the sum of those before it in its row."""
    sums = torch.zeros_like(weights)
    torch.cumsum(weights[:, :-1], dim=-1, out=sums[:, 1:])
    return sums


def _draw(
    weights: torch.Tensor, states: Several[RoomState], ids: torch.Tensor | None
) -> list[Choice]:
    """Draw from weights ``[rooms, tokens]`` in order of their ids; ``ids`` None: they are all."""
    shares = [(uniform(state.asked.sampling.seed, len(state.output)),) for state in states]
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1:].contiguous()
    # right: a weight of 0 is never hit, not even by a share of exactly 0.
    places = torch.searchsorted(sums, _columns(weights, shares)[0] * total, right=True)
    # The product may round up to the whole sum: then the last token that weighs anything.
    places = places.minimum(torch.searchsorted(sums, total))
    tokens = (places if ids is None else ids.gather(1, places)).flatten().tolist()
    choices = []
    for row, (token, state) in enumerate(zip(tokens, states, strict=True)):
        if not _is_told(state):
            choices.append(Choice(token))
            continue
        logs = weights[row].log() - total[row].log()
        choices.append(Choice(token, logs=logs, ids=None if ids is None else ids[row]))
    return choices


def _columns(like: torch.Tensor, rows: Several[tuple[float, ...]]) -> list[torch.Tensor]:
    """Return numbers by room, fp64 ``[rooms, 1]`` each."""
    table = torch.tensor(rows, dtype=torch.float64, device=like.device)
    return [column.contiguous().unsqueeze(1) for column in table.unbind(1)]

"""Log-probabilities of tokens: of the model as it is, or of what the sampler drew from.

The model's own are taken before penalty, bias, grammar, temperature and truncation, as OpenAI's API
and vLLM (``raw_logprobs``) have them. Those of what was drawn from come after all of them and sum
to one over the tokens that were left (vLLM's ``processed_logprobs``); SGLang's are after the
temperature, but before the truncation. At temperature 0 they are of temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from daemons.engine.room import RoomState
from daemons.protocol.generate import TokenOut

_BLOCK = 64  # tokens
_WORTH = 4  # blocks for each token that is looked for; with fewer, looking at all is as fast
_ROWS = 8  # rows judged at once: what they take stays in the caches
_OUT = float("-inf")


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a room, or (``error``) why nothing could be.

    Attributes:
        logs: log-probabilities of what was drawn from, fp64 ``[tokens]``; for rooms that want them.
        ids: the tokens of ``logs``, ascending; None: all of the vocabulary.
    """

    token: int = -1
    error: str = ""
    logs: torch.Tensor | None = None
    ids: torch.Tensor | None = None


def likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest scores, largest first, lowest ids first among equals, with their ids.

    Args:
        scores: ``[rooms, tokens]``, no NaN.
        count: how many, at least one and at most as many as there are tokens.
    """
    if count == scores.shape[1]:
        return scores.sort(dim=-1, descending=True, stable=True)
    values, ids = _largest(scores, count)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    # Any of those that equal the last one may have been taken.
    last = values[:, -1:]
    torn = ((scores >= last).sum(dim=-1) > count) & (last.squeeze(1) > _OUT)
    for row in torn.nonzero().flatten().tolist():
        some = (scores[row] >= last[row]).nonzero().flatten()  # in order of their ids
        ordered, places = scores[row, some].sort(descending=True, stable=True)
        values[row], ids[row] = ordered[:count], some[places[:count]]
    return values, ids


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest scores and their ids; they lie in as many blocks with largest maxima."""
    rooms, tokens = scores.shape
    blocks = tokens // _BLOCK
    if count * _WORTH > blocks:
        return scores.topk(count, dim=-1)
    whole = blocks * _BLOCK
    body = scores[:, :whole].reshape(rooms, blocks, _BLOCK)
    where = body.amax(dim=-1).topk(count, dim=-1)[1].unsqueeze(-1)
    some = body.gather(1, where.expand(-1, -1, _BLOCK)).flatten(1)
    ids = (where * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)
    if whole < tokens:
        rest = torch.arange(whole, tokens, device=scores.device).expand(rooms, -1)
        some, ids = torch.cat((some, scores[:, whole:]), 1), torch.cat((ids, rest), 1)
    values, places = some.topk(count, dim=-1)
    return values, ids.gather(1, places)


def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]
) -> list[TokenOut]:
    """Return each token with its log-probability and those of the likeliest.

    Args:
        logits: raw, fp32 ``[tokens, vocabulary]``: what the model says in each one's place.
        tokens: ids of the tokens.
        tops: for each, how many of the likeliest to name.
    """
    outs = []
    for first in range(0, len(tokens), _ROWS):
        some = slice(first, first + _ROWS)
        outs += _judged(logits[some], tokens[some], tops[some])
    return outs


def _judged(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenOut]:
    largest = logits.amax(dim=-1, keepdim=True).double()
    total = logits.sub(largest).exp_().sum(dim=-1, keepdim=True).log_()  # fp64
    ids = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    own = (logits.gather(1, ids) - largest - total).squeeze(1).tolist()
    widest = min(max(tops), logits.shape[1])
    best: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if widest > 0:
        values, names = likeliest(logits, widest)
        best = _pairs(names, values - largest - total)
    return [
        TokenOut(token, logprob, top[:count])
        for token, logprob, top, count in zip(tokens, own, best, tops, strict=True)
    ]


def drawn_logprob(token: int, logs: torch.Tensor, ids: torch.Tensor | None, top: int) -> TokenOut:
    """Return a token with its log-probability among those that it was drawn from.

    Args:
        token: which.
        logs: ``[tokens]``; -inf: it could not be drawn.
        ids: the tokens of ``logs``, ascending; None: all.
        top: how many of the likeliest to name; fewer when fewer could be drawn.
    """
    place = token if ids is None else int((ids == token).nonzero())
    best: tuple[tuple[int, float], ...] = ()
    if top > 0:
        values, places = likeliest(logs.unsqueeze(0), min(top, len(logs)))
        (best,) = _pairs(places if ids is None else ids[places], values)
    return TokenOut(token, float(logs[place]), best)


def told(
    logits: torch.Tensor, choices: list[Choice], rooms: Sequence[RoomState]
) -> list[TokenOut | str]:
    """Return each room's token with the log-probabilities that it wants, or its error."""
    outs: list[TokenOut | str] = [choice.error or TokenOut(choice.token) for choice in choices]
    raw: list[tuple[int, int]] = []  # row, how many of the likeliest
    for row, (choice, room) in enumerate(zip(choices, rooms, strict=True)):
        top = room.asked.sampling.logprobs
        if top is None or choice.error:
            continue
        if choice.logs is None:
            raw.append((row, top))
        else:
            outs[row] = drawn_logprob(choice.token, choice.logs, choice.ids, top)
    if raw:
        rows = torch.tensor([row for row, _ in raw], device=logits.device)
        tokens = [choices[row].token for row, _ in raw]
        judged = token_logprobs(logits[rows], tokens, [top for _, top in raw])
        for (row, _), out in zip(raw, judged, strict=True):
            outs[row] = out
    return outs


def _pairs(ids: torch.Tensor, logs: torch.Tensor) -> list[tuple[tuple[int, float], ...]]:
    """Return ids with their log-probabilities, those that have one; both ``[rows, tokens]``."""
    return [
        tuple(pair for pair in zip(row_ids, row_logs, strict=True) if pair[1] > _OUT)
        for row_ids, row_logs in zip(ids.tolist(), logs.tolist(), strict=True)
    ]

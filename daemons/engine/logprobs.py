"""Log-probabilities of tokens: of the model as it is, or of what the sampler drew from.

The model's own are taken before penalty, bias, grammar, temperature and truncation, as OpenAI's API
and vLLM (``raw_logprobs``) have them. Those of what was drawn from come after all of them and sum
to one over the tokens that were left (vLLM's ``processed_logprobs``); SGLang's are after the
temperature, but before the truncation. At temperature 0 they are of temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from daemons.engine.room import RoomState
from daemons.engine.sampler import Choice
from daemons.protocol.generate import TokenOut


def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]
) -> list[TokenOut]:
    """Return each token with its log-probability and those of the likeliest.

    Args:
        logits: raw, fp32 ``[tokens, vocabulary]``: what the model says in each one's place.
        tokens: ids of the tokens.
        tops: for each, how many of the likeliest to name.
    """
    if not tokens:
        return []
    logs = logits.log_softmax(dim=-1)
    ids = torch.tensor(tokens, device=logits.device)
    own = logs.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
    widest = min(max(tops), logits.shape[1])
    best = [()] * len(tokens) if widest == 0 else _pairs(logs, widest)
    return [
        TokenOut(token, logprob, tuple(top[:count]))
        for token, logprob, top, count in zip(tokens, own, best, tops, strict=True)
    ]


def drawn_logprob(token: int, logs: torch.Tensor, ids: torch.Tensor | None, top: int) -> TokenOut:
    """Return a token with its log-probability among those that it was drawn from.

    Args:
        token: which.
        logs: ``[tokens]``; -inf: it could not be drawn.
        ids: the tokens of ``logs``; None: all, in order.
        top: how many of the likeliest to name; fewer when fewer could be drawn.
    """
    place = token if ids is None else int((ids == token).nonzero())
    values, places = logs.topk(min(top, len(logs)))
    names = (places if ids is None else ids[places]).tolist()
    best = tuple(
        (id_, value)
        for id_, value in zip(names, values.tolist(), strict=True)
        if value > float("-inf")
    )
    return TokenOut(token, float(logs[place]), best)


def told(
    logits: torch.Tensor, choices: list[Choice], rooms: list[RoomState]
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


def _pairs(logs: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    values, ids = logs.topk(count, dim=-1)
    return [
        tuple(zip(row_ids, row_values, strict=True))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]

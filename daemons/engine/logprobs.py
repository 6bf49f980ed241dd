"""Log-probabilities of tokens: of the model as it is, before penalties and temperature."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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


def _pairs(logs: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    values, ids = logs.topk(count, dim=-1)
    return [
        tuple(zip(row_ids, row_values, strict=True))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]

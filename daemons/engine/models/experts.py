"""A mixture of experts: each token goes through a few of many small MLPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from daemons.engine.linear import Linear


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLPs of one layer, and the choice among them.

    Attributes:
        router: ``[tokens, hidden]`` to ``[tokens, experts]``.
        experts: by number, ``[tokens, hidden]`` to the same.
        chosen: how many a token goes through.
        renormed: the weights of the chosen sum to one.
    """

    router: Linear
    experts: tuple[Callable[[torch.Tensor], torch.Tensor], ...]
    chosen: int
    renormed: bool

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of what the chosen experts say, ``[tokens, hidden]``."""
        odds = self.router(rows).float().softmax(-1)
        weights, picked = odds.topk(self.chosen, dim=-1)  # [tokens, chosen]
        if self.renormed:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(rows.dtype)
        total = torch.zeros_like(rows)
        for number in sorted(set(picked.flatten().tolist())):
            tokens, places = torch.where(picked == number)
            said = self.experts[number](rows[tokens])
            total.index_add_(0, tokens, said * weights[tokens, places].unsqueeze(1))
        return total

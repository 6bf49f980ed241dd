from __future__ import annotations

import pytest
import torch

from daemons.engine.models.experts import Experts

ODDS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]])


@pytest.mark.parametrize(("renormed", "total"), [(True, 0.8), (False, 1.0)])
@torch.inference_mode()
def test_a_token_is_the_weighted_sum_of_its_likeliest_experts(
    *, renormed: bool, total: float
) -> None:
    experts = Experts(
        lambda rows: ODDS.log(),
        tuple(lambda rows, by=by: rows * by for by in (1.0, 10.0, 100.0, 1000.0)),  # type: ignore[misc]
        chosen=2,
        renormed=renormed,
    )
    found = experts(torch.ones(2, 3))
    wanted = torch.tensor([0.5 * 1 + 0.3 * 10, 0.3 * 100 + 0.5 * 1000]) / total
    assert torch.allclose(found, wanted.unsqueeze(1).expand(2, 3))

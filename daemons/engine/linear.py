"""Linear layers: torch's own, or weights packed for oneDNN where that pays.

The packed operators are private to torch (its compiler uses them), so each use is tested against
``F.linear`` when the weight is packed; a difference or an absent operator means ``F.linear``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]  # [tokens, in] -> [tokens, out]

PACK_ELEMENTS = 1 << 18  # below, a call's fixed cost is more than packing saves
_TEST_ROWS = 3
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # relative to the largest output


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return a linear layer; the caller drops ``weight`` afterwards, or it is held twice.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]``.
    """
    if weight.device.type == "cpu" and weight.numel() >= PACK_ELEMENTS:
        packed = pack(weight, bias)
        if packed is not None:
            return packed
    return plain(weight, bias)


def plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Return ``F.linear`` over this weight."""

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        return F.linear(inputs, weight, bias)

    return apply


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear | None:
    """Return a layer over a packed copy, or None where torch cannot, or not correctly."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        run = torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError, NotImplementedError):
        return None

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = run(inputs, packed, bias, "none", [], "")
        return outputs

    return apply if agrees(apply, plain(weight, bias), weight) else None


def agrees(layer: Linear, reference: Linear, weight: torch.Tensor) -> bool:
    """Say whether two layers over ``weight`` give the same on a few rows of noise."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(_TEST_ROWS, weight.shape[1], generator=generator).to(weight.dtype)
    wanted = reference(noise).float()
    try:
        found = layer(noise).float()
    except RuntimeError:
        return False
    if found.shape != wanted.shape:
        return False
    limit = _TOLERANCE[weight.dtype] * float(wanted.abs().max())
    return float((found - wanted).abs().max()) <= limit

"""Linear layers over rounded weights, by torch: its packed kernels where they are right and pay.

The kernels are private to torch, so each is compared with the expanded weight when a layer is made;
a difference, a shape that it reads beyond, or an absent operator means that the weight is expanded
anew in each call, which costs time and saves the memory all the same. On a CPU with the compiled
kernels of ``native`` none of this runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from daemons.engine.config import Weights
from daemons.engine.linear import Linear, linear
from daemons.engine.quant import GROUP, Eight, Four, eight, rounded

Lookup = Callable[[torch.Tensor], torch.Tensor]  # numbers of rows to rows

FEW_ROWS = 8  # up to here a packed kernel of eight bits is the faster one
_TEST_ROWS = 3
_TOLERANCE = 2e-2  # bf16, relative to the largest output
_WHOLE = 32  # inputs: of other widths torch's kernel for eight bits on a CPU reads beyond the row
_OUTPUTS4 = 8  # what torch's kernel for four bits on CUDA divides outputs by
_TILES4 = (8, 4, 2)  # its inner tiles, of 16 inputs each


@dataclass(frozen=True, slots=True)
class Forms:
    """How a model's weights are held.

    Attributes:
        linear: a layer for a weight ``[out, in]`` and a bias.
        tied: the lookup and the layer of one table that is embedding and projection.
        head: the layer of a vocabulary's projection that is not the embedding.
    """

    linear: Callable[[torch.Tensor, torch.Tensor | None], Linear]
    tied: Callable[[torch.Tensor], tuple[Lookup, Linear]]
    head: Callable[[torch.Tensor], Linear]


def forms_of(kind: Weights) -> Forms:
    """Return the forms that ``engine.weights`` asks for."""
    if kind == "auto":
        return Forms(linear, lambda table: (table.__getitem__, linear(table)), linear)

    def layer(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return rounded_linear(rounded(weight, kind), bias)

    def tied(table: torch.Tensor) -> tuple[Lookup, Linear]:
        held = eight(table)
        return held.rows, rounded_linear(held)

    return Forms(layer, tied, lambda weight: rounded_linear(eight(weight)))


def rounded_linear(weight: Eight | Four, bias: torch.Tensor | None = None) -> Linear:
    """Return a layer over a rounded weight."""
    run = _by_eight(weight) if isinstance(weight, Eight) else _by_four(weight)
    if bias is None:
        return run

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        return run(inputs).add_(bias)

    return apply


def expanding(weight: Eight | Four) -> Linear:
    """Return a layer that expands its weight in each call."""

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        return F.linear(inputs, weight.expanded())

    return apply


def agrees(layer: Linear, reference: Linear, like: torch.Tensor, width: int) -> bool:
    """Say whether two layers give the same on a few rows of noise of a tensor's type and place."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(_TEST_ROWS, width, generator=generator).to(like.device, like.dtype)
    wanted = reference(noise).float()
    try:
        found = layer(noise).float()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    if found.shape != wanted.shape:
        return False
    return float((found - wanted).abs().max()) <= _TOLERANCE * float(wanted.abs().max())


def _by_eight(weight: Eight) -> Linear:
    many = expanding(weight)

    def few(inputs: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(inputs, weight.values, weight.scales)

    width = weight.values.shape[1]
    # In fp32 torch has only a plain loop for it.
    pays = weight.scales.dtype is torch.bfloat16 and width % _WHOLE == 0
    if not pays or not agrees(few, many, weight.scales, width):
        return many

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        return few(inputs) if len(inputs) <= FEW_ROWS else many(inputs)

    return apply


def _by_four(weight: Four) -> Linear:
    """Return a layer over a packed copy on CUDA; torch's kernel for CPUs is the slower one."""
    reference = expanding(weight)
    if weight.scales.device.type != "cuda" or weight.scales.dtype is not torch.bfloat16:
        return reference
    outputs, width = len(weight.scales), weight.nibbles.shape[1] * 2
    tiles = next((tiles for tiles in _TILES4 if width % (16 * tiles) == 0), 0)
    if outputs % _OUTPUTS4 or not tiles:
        return reference
    try:
        packed = torch._convert_weight_to_int4pack(for_cuda(weight), tiles)
    except (AttributeError, RuntimeError, NotImplementedError):
        return reference
    scales = scales_and_zeros(weight)

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm(inputs, packed, GROUP, scales)

    return apply if agrees(apply, reference, weight.scales, width) else reference


def for_cuda(weight: Four) -> torch.Tensor:
    """Return the nibbles as torch packs them for CUDA: the first of two is the upper half."""
    return weight.nibbles << 4 | weight.nibbles >> 4


def scales_and_zeros(weight: Four) -> torch.Tensor:
    """Return ``[in / GROUP, out, 2]``: there a weight is ``(nibble - 8) * scale + zero``."""
    zeros = (weight.lows.float() + 8 * weight.scales.float()).to(weight.lows.dtype)
    return torch.stack((weight.scales, zeros), dim=-1).transpose(0, 1).contiguous()

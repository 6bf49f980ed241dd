"""Rotary positions: the frequencies of each variant, and the rotation itself.

A head is rotated in its two halves (Hugging Face's order), not in neighbouring pairs.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch

from daemons.cluster.errors import OperatorError

KINDS = ("default", "linear", "llama3")


class Rope(msgspec.Struct, frozen=True):
    """Which rotation a model was trained with."""

    theta: float
    kind: str = "default"
    factor: float = 1.0  # linear, llama3: how much longer the context became
    low_freq_factor: float = 1.0  # llama3, as are the next two
    high_freq_factor: float = 4.0
    original_positions: int = 0


def rope_of(config: dict[str, Any]) -> Rope:
    """Return the rotation that a ``config.json`` describes, in the old or the new spelling.

    Raises:
        OperatorError: a variant that is not served.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in KINDS:
        raise OperatorError(
            f"rotary positions of type {kind!r} are not served", f"served: {', '.join(KINDS)}"
        )
    partial = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise OperatorError(f"partial_rotary_factor {partial} is not served", "served: 1.0")
    theta = float(scaling.get("rope_theta", config.get("rope_theta", 10000.0)))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, float(scaling["factor"]))
    return Rope(
        theta,
        kind,
        float(scaling["factor"]),
        float(scaling["low_freq_factor"]),
        float(scaling["high_freq_factor"]),
        int(scaling["original_max_position_embeddings"]),
    )


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return the angle per position of each pair of a head, fp32 ``[head_dim / 2]``.

    Source: for llama3, the Llama 3.1 release: slow waves (longer than the original context allows)
    are slowed by ``factor``, fast ones are kept, those between are blended by wave length.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    angles = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return angles
    slowed = angles / rope.factor
    if rope.kind == "linear":
        return slowed
    waves_in_original = rope.original_positions * angles / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((waves_in_original - rope.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * slowed + kept * angles


def turns(positions: torch.Tensor, angles: torch.Tensor, dtype: torch.dtype) -> Turns:
    """Return cosines and signed sines for a batch of positions.

    Args:
        positions: ``[tokens]``.
        angles: ``[head_dim / 2]`` of :func:`frequencies`.
    """
    turned = torch.outer(positions.float(), angles)  # [tokens, head_dim / 2]
    cosine, sine = turned.cos(), turned.sin()
    both = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return both[0].to(dtype).unsqueeze(1), both[1].to(dtype).unsqueeze(1)


Turns = tuple[torch.Tensor, torch.Tensor]  # each [tokens, 1, head_dim]


def rotate_(heads: torch.Tensor, turn: Turns) -> None:
    """Rotate queries and keys in place, ``[tokens, heads, head_dim]``."""
    cosine, sine = turn
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(cosine).addcmul_(swapped, sine)

"""Rotary positions: the frequencies of each variant, and the rotation itself.

A head is rotated in its two halves (Hugging Face's order), not in neighbouring pairs.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch

from daemons.cluster.errors import OperatorError

KINDS = ("default", "linear", "llama3", "yarn")


class Rope(msgspec.Struct, frozen=True):
    """Which rotation a model was trained with."""

    theta: float
    kind: str = "default"
    factor: float = 1.0  # how much longer the context became
    low_freq_factor: float = 1.0  # llama3, as is the next
    high_freq_factor: float = 4.0
    original_positions: int = 0  # llama3, yarn
    beta_fast: float = 32.0  # yarn, as is the next: turns within the original context
    beta_slow: float = 1.0
    truncate: bool = True  # yarn: the blend begins and ends at whole pairs
    amplitude: float = 1.0  # yarn: what cosines and sines are multiplied with
    divisors: tuple[float, ...] = ()  # by pair, on top of the rest; what GGUF files hold


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
        return Rope(theta, divisors=tuple(scaling.get("divisors", ())))
    factor = float(scaling["factor"])
    if kind == "linear":
        return Rope(theta, kind, factor)
    original = scaling.get("original_max_position_embeddings")
    original = int(original or config["max_position_embeddings"])
    if kind == "yarn":
        return Rope(
            theta,
            kind,
            factor,
            original_positions=original,
            beta_fast=float(scaling.get("beta_fast") or 32),
            beta_slow=float(scaling.get("beta_slow") or 1),
            truncate=bool(scaling.get("truncate", True)),
            amplitude=_yarn_amplitude(scaling, factor),
        )
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    return Rope(theta, kind, factor, low, high, original)


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return the angle per position of each pair of a head, fp32 ``[head_dim / 2]``.

    Source: for llama3, the Llama 3.1 release: slow waves (longer than the original context allows)
    are slowed by ``factor``, fast ones are kept, those between are blended by wave length. For
    yarn, https://arxiv.org/abs/2309.00071: the same, blended by the number of the pair.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    angles = 1.0 / rope.theta**exponents
    if rope.divisors:
        angles = angles / torch.tensor(rope.divisors)
    if rope.kind == "default":
        return angles
    slowed = angles / rope.factor
    if rope.kind == "linear":
        return slowed
    if rope.kind == "yarn":
        kept = _yarn_kept(rope, head_dim)
    else:
        waves_in_original = rope.original_positions * angles / (2 * math.pi)
        span = rope.high_freq_factor - rope.low_freq_factor
        kept = ((waves_in_original - rope.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * slowed + kept * angles


def _yarn_kept(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return how much of each pair's own angle is kept, 1 for the fastest, ``[head_dim / 2]``."""

    def pair(turns_in_original: float) -> float:
        wave = rope.original_positions / (turns_in_original * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low or 0.001
    return 1 - ((torch.arange(head_dim // 2).float() - low) / span).clamp(0, 1)


def _yarn_amplitude(scaling: dict[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, weight_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if weight and weight_all:
        return grown(float(weight)) / grown(float(weight_all))
    return grown(1.0)


def turns(
    positions: torch.Tensor, angles: torch.Tensor, dtype: torch.dtype, amplitude: float = 1.0
) -> Turns:
    """Return cosines and signed sines for a batch of positions.

    Args:
        positions: ``[tokens]``.
        angles: ``[head_dim / 2]`` of :func:`frequencies`.
        dtype: of what is returned.
        amplitude: what both are multiplied with.
    """
    turned = torch.outer(positions.float(), angles)  # [tokens, head_dim / 2]
    cosine, sine = turned.cos() * amplitude, turned.sin() * amplitude
    both = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return both[0].to(dtype).unsqueeze(1), both[1].to(dtype).unsqueeze(1)


Turns = tuple[torch.Tensor, torch.Tensor]  # each [tokens, 1, head_dim]


def rotate_(heads: torch.Tensor, turn: Turns) -> None:
    """Rotate queries and keys in place, ``[tokens, heads, head_dim]``."""
    cosine, sine = turn
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(cosine).addcmul_(swapped, sine)

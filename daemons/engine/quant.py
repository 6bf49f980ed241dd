"""Weights of eight or four bits, rounded when a model is loaded: numbers and what they stand for.

- ``int8``: one scale for each row (output), -127 to 127, symmetric.
- ``int4``: a scale and a lowest value for each :data:`GROUP` inputs of a row, 0 to 15; five bits a
  weight in all. A row that does not divide into groups has eight bits.
- The vocabulary's projection has eight bits in both kinds, also where it is the embedding: every
  token passes through it, and four bits there cost the most.
- An embedding of its own, norms, biases and the choice among experts stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from daemons.engine.config import Weights

GROUP = 32  # inputs that share a scale in int4
_LARGEST8 = 127
_LARGEST4 = 15
_BLOCK_ELEMENTS = 1 << 24  # of a weight in fp32 at once, for memory's sake


@dataclass(frozen=True, slots=True)
class Eight:
    """A matrix in eight bits: row ``i`` is ``values[i] * scales[i]``."""

    values: torch.Tensor  # int8 [out, in]
    scales: torch.Tensor  # [out], of the type that is computed in

    def expanded(self) -> torch.Tensor:
        """Return what it stands for, ``[out, in]``."""
        return self.values.to(self.scales.dtype) * self.scales.unsqueeze(1)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return some rows, ``[numbers, in]``."""
        return self.values[numbers].to(self.scales.dtype) * self.scales[numbers].unsqueeze(1)


@dataclass(frozen=True, slots=True)
class Four:
    """A matrix in four bits: a weight is ``nibble * scale + low``, both of its group.

    Attributes:
        nibbles: uint8 ``[out, in / 2]``; the first of two inputs is the lower half of a byte.
        scales: ``[out, in / GROUP]``, of the type that is computed in.
        lows: the same; what a nibble of 0 stands for.
    """

    nibbles: torch.Tensor
    scales: torch.Tensor
    lows: torch.Tensor

    def levels(self) -> torch.Tensor:
        """Return a number from 0 to 15 for each weight, uint8 ``[out, in]``."""
        pairs = torch.stack((self.nibbles & _LARGEST4, self.nibbles >> 4), dim=-1)
        return pairs.flatten(1)

    def expanded(self) -> torch.Tensor:
        """Return what it stands for, ``[out, in]``."""
        levels = self.levels().view(len(self.nibbles), -1, GROUP).float()
        wide = levels * self.scales.float().unsqueeze(2) + self.lows.float().unsqueeze(2)
        return wide.flatten(1).to(self.scales.dtype)


def eight(weight: torch.Tensor) -> Eight:
    """Round a weight ``[out, in]`` to eight bits; a row's largest entry is kept."""
    parts = [_eight(part) for part in _parts(weight)]
    return Eight(
        torch.cat([values for values, _ in parts]),
        torch.cat([scales for _, scales in parts]).to(weight.dtype),
    )


def four(weight: torch.Tensor) -> Four:
    """Round a weight ``[out, in]`` to four bits; a group's largest and smallest are kept.

    Raises:
        ValueError: its rows do not divide into groups.
    """
    if weight.shape[1] % GROUP:
        raise ValueError(f"rows of {weight.shape[1]} do not divide into groups of {GROUP}")
    parts = [_four(part) for part in _parts(weight)]
    return Four(*(torch.cat(kind) for kind in zip(*parts, strict=True)))


def rounded(weight: torch.Tensor, kind: Weights) -> Eight | Four:
    """Return a weight as ``engine.weights`` asks for it, where that is not ``auto``."""
    return four(weight) if kind == "int4" and weight.shape[1] % GROUP == 0 else eight(weight)


def _parts(weight: torch.Tensor) -> list[torch.Tensor]:
    rows = max(1, _BLOCK_ELEMENTS // weight.shape[1])
    return [weight[first : first + rows] for first in range(0, len(weight), rows)]


def _eight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = weight.float()
    # Of the type that it is kept in, so that the values are the nearest to what is multiplied.
    scales = (wide.abs().amax(1) / _LARGEST8).to(weight.dtype)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    values = (wide / scales.float().unsqueeze(1)).round_().clamp_(-_LARGEST8, _LARGEST8)
    return values.to(torch.int8), scales


def _four(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = weight.float().reshape(len(weight), -1, GROUP)
    lows = groups.amin(2).to(weight.dtype)
    scales = ((groups.amax(2) - lows.float()) / _LARGEST4).to(weight.dtype)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    levels = (groups - lows.float().unsqueeze(2)) / scales.float().unsqueeze(2)
    levels = levels.round_().clamp_(0, _LARGEST4).to(torch.uint8).flatten(1)
    return levels[:, ::2] | levels[:, 1::2] << 4, scales, lows

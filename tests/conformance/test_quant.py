"""What rounding costs: a real model's perplexity on a fixed text, and the memory that is saved.

The bounds are for SmolLM2-135M; small models are the most sensitive. Its weights come from a file
of four bits, in groups of 32 along a row, which our own groups meet almost exactly. So four bits
are also measured with the inputs of each layer in another order, where they do not: that is what to
expect of a model of this size that was never rounded. On a CUDA device the same holds, by torch's
packed kernels where they are right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import model_directory
from daemons.engine.attention import paged_attention
from daemons.engine.config import Weights
from daemons.engine.device import Place
from daemons.engine.linear import Linear
from daemons.engine.models import decoder, load_model, read_spec
from daemons.engine.native.attention import native_attention
from daemons.engine.parts import ByParts
from daemons.engine.quant import GROUP, four
from daemons.engine.quant_linear import Forms, forms_of, rounded_linear
from daemons.engine.weights import Checkpoint
from tests.support import native
from tests.support.devices import EACH_DEVICE, Where, device
from tests.support.prose import perplexity

# How much larger the perplexity may be than with bf16 weights.
BOUND = {"int8": 1.015, "int4": 1.015, "int4, inputs in another order": 1.4}
FOUND: dict[tuple[Where, str], float] = {}


def place_of(where: Where) -> Place:
    return Place(device(where), torch.bfloat16)


@functools.cache
def plain(where: Where) -> float:
    return measured("auto", where)


def measured(kind: Weights, where: Where) -> float:
    directory, place = model_directory(DEFAULT_MODEL), place_of(where)
    team = native.team(1) if where == "cpu" else None
    model, _ = load_model(directory, place, team, kind)
    attention = native_attention(team) if team is not None else ByParts(paged_attention)
    return perplexity(model, attention, place, directory)


def in_another_order(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """A layer of four bits whose groups are inputs that lie far apart."""
    order = torch.arange(weight.shape[1]).view(GROUP, -1).T.flatten()
    layer = rounded_linear(four(weight[:, order]), bias)
    return lambda inputs: layer(inputs[:, order])


@EACH_DEVICE
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_rounded_model_foretells_a_text_nearly_as_well(kind: Weights, where: Where) -> None:
    FOUND[where, kind] = measured(kind, where) / plain(where)
    assert FOUND[where, kind] <= BOUND[kind]


@EACH_DEVICE
def test_four_bits_are_good_for_weights_that_did_not_have_four(where: Where) -> None:
    directory, kind = model_directory(DEFAULT_MODEL), "int4, inputs in another order"
    place = place_of(where)
    forms = Forms(in_another_order, forms_of("int4").tied, forms_of("int4").head)
    model = decoder.build(read_spec(directory), Checkpoint(directory, place), place, forms)
    FOUND[where, kind] = perplexity(model, ByParts(paged_attention), place, directory) / plain(
        where
    )
    assert FOUND[where, kind] <= BOUND[kind]


@EACH_DEVICE
def test_the_table(where: Where, tell: Callable[[str], None]) -> None:
    lines = [f"SmolLM2-135M, {where}, perplexity in bf16 {plain(where):.2f}; times that:"]
    for (_, kind), times in ((key, FOUND[key]) for key in FOUND if key[0] == where):
        lines.append(f"  {kind:32} {times:.4f}  (bound {BOUND[kind]})")
    tell("\n".join(lines))
    assert plain(where) < 40

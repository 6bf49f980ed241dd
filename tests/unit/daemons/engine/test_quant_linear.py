from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from daemons.engine import quant_linear
from daemons.engine.quant import GROUP, Eight, eight, four
from daemons.engine.quant_linear import (
    FEW_ROWS,
    agrees,
    expanding,
    for_cuda,
    forms_of,
    rounded_linear,
    scales_and_zeros,
)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(6)).to(dtype)


# 36 inputs: torch's kernel reads beyond such rows in bf16; 100 outputs: no multiple of any tile.
@pytest.mark.parametrize("shape", [(64, 64), (100, 96), (48, 36)], ids=str)
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["int8", "int4"])
@TYPES
def test_a_layer_computes_with_what_its_weight_stands_for(
    *, dtype: torch.dtype, kind: str, biased: bool, rows: int, shape: tuple[int, int]
) -> None:
    weight = noise(*shape, dtype=dtype)
    bias = noise(shape[0], dtype=dtype) if biased else None
    held = quant_linear.rounded(weight, kind)  # type: ignore[arg-type]
    inputs = noise(rows, shape[1], dtype=dtype)
    wanted = F.linear(inputs, held.expanded(), bias).float()
    found = forms_of(kind).linear(weight, bias)(inputs)  # type: ignore[arg-type]
    assert found.dtype is dtype
    limit = (1e-5 if dtype is torch.float32 else 1e-2) * wanted.abs().max()
    assert (found.float() - wanted).abs().max() <= limit


def test_a_kernel_that_differs_or_breaks_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    held, inputs = eight(noise(64, 64, dtype=torch.bfloat16)), noise(2, 64, dtype=torch.bfloat16)
    wanted = expanding(held)(inputs)

    def wrong(rows: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(rows), 64, dtype=torch.bfloat16)

    def absent(*_: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no such kernel")

    for kernel in (wrong, absent):
        monkeypatch.setattr(torch, "_weight_int8pack_mm", kernel)
        assert torch.equal(rounded_linear(held)(inputs), wanted)


def test_a_layer_agrees_with_itself_and_not_with_another() -> None:
    one, other = eight(noise(8, 32)), eight(noise(8, 32) * 1.1)
    assert agrees(expanding(one), expanding(one), one.scales, 32)
    assert not agrees(expanding(other), expanding(one), one.scales, 32)
    assert not agrees(expanding(eight(noise(4, 32))), expanding(one), one.scales, 32)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_tied_table_and_a_head_have_eight_bits(kind: str) -> None:
    forms = forms_of(kind)  # type: ignore[arg-type]
    table = noise(40, GROUP)
    lookup, head = forms.tied(table)
    held = eight(table)
    assert torch.equal(lookup(torch.tensor([7, 0])), held.expanded()[[7, 0]])
    inputs = noise(2, GROUP)
    assert torch.allclose(head(inputs), inputs @ held.expanded().T, atol=1e-5)
    assert torch.equal(forms.head(table)(inputs), head(inputs))


def test_without_rounding_a_layer_is_the_plain_one() -> None:
    forms, table = forms_of("auto"), noise(40, 16)
    lookup, head = forms.tied(table)
    assert torch.equal(lookup(torch.tensor([7])), table[7:8])
    assert torch.equal(head(table[:2]), F.linear(table[:2], table))
    assert torch.equal(forms.linear(table, None)(table[:2]), F.linear(table[:2], table))


def cuda_four(inputs: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What torch documents of its kernel for four bits on CUDA: the upper half comes first."""
    levels = torch.stack((packed >> 4, packed & 15), dim=-1).flatten(1).float() - 8
    step, zero = scales.float().transpose(0, 1).repeat_interleave(GROUP, dim=1).unbind(-1)
    return (inputs.float() @ (levels * step + zero).T).to(inputs.dtype)


def test_what_cuda_is_handed_stands_for_the_same_weight() -> None:
    held = four(noise(16, 2 * GROUP, dtype=torch.bfloat16))
    inputs = noise(3, 2 * GROUP, dtype=torch.bfloat16)
    found = cuda_four(inputs, for_cuda(held), scales_and_zeros(held))
    wanted = expanding(held)(inputs)
    assert (found - wanted).abs().max() <= 2e-2 * wanted.abs().max()


def test_a_layer_keeps_no_second_copy_of_its_weight() -> None:
    held = eight(noise(64, 64))
    run: Callable[[torch.Tensor], torch.Tensor] = rounded_linear(held)
    assert isinstance(held, Eight)
    held.values.zero_()
    assert not run(noise(2, 64)).any()

from __future__ import annotations

import pytest
import torch

from daemons.engine import quant
from daemons.engine.quant import GROUP, Eight, Four, eight, four, rounded

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype)


@TYPES
def test_eight_bits_are_off_by_half_a_step_of_the_row(dtype: torch.dtype) -> None:
    weight = noise(40, 96, dtype=dtype)
    held = eight(weight)
    assert held.values.dtype is torch.int8
    assert held.values.abs().max() == 127
    exact = held.values.float() * held.scales.float().unsqueeze(1)
    # A scale that was rounded may leave the largest entry half a step behind.
    assert ((exact - weight.float()).abs() <= 0.76 * held.scales.float().unsqueeze(1)).all()
    assert held.expanded().dtype is dtype
    assert torch.allclose(held.expanded().float(), exact, rtol=2**-8)


@TYPES
def test_four_bits_are_off_by_half_a_step_of_the_group(dtype: torch.dtype) -> None:
    weight = noise(12, 3 * GROUP, dtype=dtype)
    held = four(weight)
    levels = held.levels()
    assert levels.unflatten(1, (-1, GROUP)).amin(2).eq(0).all()
    assert levels.max() == 15
    off = (held.expanded().float() - weight.float()).abs().unflatten(1, (-1, GROUP))
    slack = 0.02 if dtype is torch.float32 else 0.1  # in bf16 the sum is rounded too
    assert (off <= (0.5 + slack) * held.scales.float().unsqueeze(2)).all()


def test_levels_that_four_bits_can_say_stay_what_they_are() -> None:
    levels = torch.randint(0, 16, (6, GROUP), generator=torch.Generator().manual_seed(1))
    levels[:, 0], levels[:, 1] = 0, 15
    weight = levels.float() * 0.25 - 1.5
    assert torch.equal(four(weight).expanded(), weight)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_constant_row_is_kept_and_a_row_of_zeros_too(kind: str) -> None:
    weight = torch.stack((torch.zeros(GROUP), torch.full((GROUP,), -0.75)))
    held = rounded(weight, kind)  # type: ignore[arg-type]
    assert torch.allclose(held.expanded(), weight, rtol=1e-6)


def test_a_row_that_does_not_divide_into_groups_has_eight_bits() -> None:
    assert isinstance(rounded(noise(4, 2 * GROUP), "int4"), Four)
    assert isinstance(rounded(noise(4, GROUP + 8), "int4"), Eight)
    assert isinstance(rounded(noise(4, 2 * GROUP), "int8"), Eight)
    with pytest.raises(ValueError, match="rows of 40 do not divide into groups of 32"):
        four(noise(4, GROUP + 8))


def test_a_table_gives_its_rows_one_by_one() -> None:
    held = eight(noise(9, 16))
    numbers = torch.tensor([3, 3, 8])
    assert torch.equal(held.rows(numbers), held.expanded()[numbers])


def test_a_large_weight_is_rounded_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = noise(11, 2 * GROUP)
    whole = eight(weight).expanded(), four(weight).expanded()
    monkeypatch.setattr(quant, "_BLOCK_ELEMENTS", 4 * GROUP)
    assert torch.equal(eight(weight).expanded(), whole[0])
    assert torch.equal(four(weight).expanded(), whole[1])


def test_memory_is_a_byte_or_five_bits_a_weight() -> None:
    weight = noise(64, 512, dtype=torch.bfloat16)
    held8, held4 = eight(weight), four(weight)
    bytes4 = held4.nibbles.nbytes + held4.scales.nbytes + held4.lows.nbytes
    assert held8.values.nbytes + held8.scales.nbytes == weight.numel() + 2 * 64
    assert bytes4 * 8 == 5 * weight.numel()

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from daemons.engine import linear as linears
from daemons.engine.linear import PACK_ELEMENTS, agrees, linear, pack, plain

OUT, IN = 600, 512
assert OUT * IN >= PACK_ELEMENTS


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(OUT, IN), (24, 16)], ids=["packed", "plain"])
def test_a_layer_computes_what_torch_does(
    *, shape: tuple[int, int], dtype: torch.dtype, biased: bool, rows: int
) -> None:
    weight = noise(*shape, dtype=dtype)
    bias = noise(shape[0], dtype=dtype) if biased else None
    inputs = noise(rows, shape[1], dtype=dtype)
    wanted = F.linear(inputs, weight, bias).float()
    found = linear(weight, bias)(inputs).float()
    limit = (1e-5 if dtype is torch.float32 else 1e-2) * wanted.abs().max()
    assert (found - wanted).abs().max() <= limit


def test_a_large_weight_is_packed_and_its_plain_copy_may_go() -> None:
    weight = noise(OUT, IN)
    layer = linear(weight)
    wanted = F.linear(noise(2, IN), weight)
    weight.zero_()
    assert torch.allclose(layer(noise(2, IN)), wanted, atol=1e-3)


def test_a_small_weight_is_not_packed() -> None:
    weight = noise(24, 16)
    layer = linear(weight)
    weight.zero_()
    assert not layer(noise(2, 16)).any()


def test_a_packed_layer_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "agrees", lambda *_: False)
    weight = noise(OUT, IN)
    assert pack(weight, None) is None
    assert torch.equal(linear(weight)(noise(2, IN)), F.linear(noise(2, IN), weight))


def test_without_onednn_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack(noise(OUT, IN), None) is None


def test_a_layer_agrees_with_itself_and_not_with_another_or_a_broken_one() -> None:
    weight = noise(8, 4)

    def broken(inputs: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    assert agrees(plain(weight, None), plain(weight, None), weight)
    assert not agrees(plain(weight * 1.01, None), plain(weight, None), weight)
    assert not agrees(plain(weight[:4], None), plain(weight, None), weight)
    assert not agrees(broken, plain(weight, None), weight)

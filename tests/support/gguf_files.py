"""Write a tiny model as a GGUF file, as llama.cpp's conversion does it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from daemons.engine.gguf.description import ARCHITECTURES
from daemons.engine.gguf.tensors import GEMMA_PARTS, PARTS, WHOLE
from daemons.engine.rope import Rope, frequencies, rope_of
from daemons.engine.weights import read_json
from tests.support.checkpoints import SPECIALS

# What a kind of checkpoint has to be for a header to be able to say it.
SAYABLE: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {},
    "llama3-rope": {},
    "linear-rope": {},
    "yarn-rope": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3-moe": {"mlp_only_layers": []},
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": {
        "query_pre_attn_scalar": 32,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 7,
    },
}


def write_gguf(source: Path, target: Path, *, quantised: str = "F32") -> None:
    """Write the model of a Hugging Face directory; matrices in a type of ggml."""
    config = read_json(source / "config.json")
    names = {theirs: ours for ours, (theirs, _) in ARCHITECTURES.items()}
    kind = names[config["architectures"][0]]
    writer = GGUFWriter(str(target), kind)
    _sizes(writer, config)
    _words(writer, source)
    tensors = load_file(source / "model.safetensors")
    if kind == "llama" and rope_of(config).kind == "llama3":
        size = config["head_dim"]
        plain = frequencies(Rope(config["rope_theta"]), size)
        divisors = (plain / frequencies(rope_of(config), size)).numpy()
        writer.add_tensor("rope_freqs.weight", divisors)
    for name, weight in _named(tensors, config, kind).items():
        as_type = GGMLQuantizationType[quantised if weight.ndim > 1 else "F32"]
        writer.add_tensor(name, quantize(weight, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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


def _named(
    tensors: dict[str, np.ndarray], config: dict[str, Any], kind: str
) -> dict[str, np.ndarray]:
    gemma = kind.startswith("gemma")
    parts = {ours: theirs for theirs, ours in (GEMMA_PARTS if gemma else PARTS).items()}
    whole = {ours: theirs for theirs, ours in WHOLE.items()}
    found: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, weight in tensors.items():
        stem, _, ending = name.rpartition(".")
        stored = weight + 1 if gemma and "norm" in name else weight
        expert = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj", stem)
        if expert is not None:
            layer, number, part = expert.groups()
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(number)] = stored
        elif stem in whole:
            found[f"{whole[stem]}.{ending}"] = stored
        else:
            layer, part = stem.removeprefix("model.layers.").split(".", 1)
            if kind == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                is_query = part.endswith("q_proj")
                heads = config["num_attention_heads" if is_query else "num_key_value_heads"]
                stored = interleave(stored, heads)
            found[f"blk.{layer}.{parts[part]}.{ending}"] = stored
    for name, by_number in experts.items():
        found[name] = np.stack([by_number[number] for number in sorted(by_number)])
    return found


def _sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_string(f"{writer.arch}.rope.scaling.type", scaling["rope_type"])
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_float32(f"{writer.arch}.rope.scaling.yarn_beta_fast", scaling["beta_fast"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if writer.arch.startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"])
    if config.get("attn_logit_softcapping") is not None:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _words(writer: GGUFWriter, source: Path) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    words = [tokenizer.id_to_token(number) for number in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in SPECIALS else 1 for word in words])
    writer.add_token_merges(["t h", "th e", "Ġ a", "i n", "Ġ the"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")

"""Tiny random models for tests: whole Hugging Face directories, made in milliseconds.

Written without torch or transformers, so that tests of other rooms may use them cheaply. The
words are bytes, so every text can be tokenized; what such a model says means nothing.
"""

from __future__ import annotations

import atexit
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
VOCABULARY = 320  # 3 special tokens, 256 bytes, a few merges, the rest never said by a tokenizer
POSITIONS = 512
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
WINDOW = 20  # tokens, where a kind has one: neither a page nor a chunk, and soon exceeded
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 16.0,
}
_GEMMA: dict[str, Any] = {
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_NORMS = ("input_layernorm", "post_attention_layernorm")
_GEMMA_NORMS = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")

# What each kind says differently from the plain Llama.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-bias": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    "llama3-rope": {"rope_theta": 500000.0, "rope_scaling": _LLAMA3_ROPE},
    "linear-rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_key_value_heads": 1,
        "sliding_window": WINDOW,
    },
    "mistral-full": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    },
    "yarn-rope": {"rope_scaling": _YARN},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2-window": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
    },
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 3,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3-moe-window": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
    },
    "gemma2": {
        **_GEMMA,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_hidden_layers": 3,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        **_GEMMA,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "sliding_window_pattern": 3,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}
# One kind of each architecture, the hardest.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama3-rope",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2-window",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3-moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}


@functools.cache
def checkpoint(kind: str) -> Path:
    """Return the directory of a tiny model of a kind, the same for the whole test run."""
    directory = scratch() / kind
    write_checkpoint(directory, kind)
    return directory


def write_checkpoint(directory: Path, kind: str, *, seed: int = 0, **changes: Any) -> None:
    """Write a tiny model; ``changes`` go into its ``config.json``, ``seed`` draws its weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**_LLAMA, **KINDS[kind], **changes}
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"eos_token_id": EOS, "pad_token_id": 0})
    save_file(weights(config, seed), directory / "model.safetensors", {"format": "pt"})
    _write_tokenizer(directory, config["max_position_embeddings"])


def weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return random weights under the names that Hugging Face gives them, fp32."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    gemma = config["model_type"].startswith("gemma")

    def norm(size: int) -> np.ndarray:
        return (0 if gemma else 1) + normal(size, scale=0.2)

    tensors = {
        "model.embed_tokens.weight": normal(vocabulary, hidden, scale=1.0),
        "model.norm.weight": norm(hidden),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(vocabulary, hidden, scale=1.0)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for part in _GEMMA_NORMS if gemma else _NORMS:
            tensors[f"{name}.{part}.weight"] = norm(hidden)
        for part, (rows, columns, bias) in _projections(config, layer).items():
            # A router that is sure of its choice, so that a rounding seldom changes it.
            scale = 4.0 if part == "mlp.gate" else 1.5
            tensors[f"{name}.{part}.weight"] = normal(rows, columns, scale=scale * columns**-0.5)
            if bias:
                tensors[f"{name}.{part}.bias"] = normal(rows, scale=0.3)
        if config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
            for part in ("q_norm", "k_norm"):
                tensors[f"{name}.self_attn.{part}.weight"] = norm(config["head_dim"])
    return tensors


def _projections(config: dict[str, Any], layer: int) -> dict[str, tuple[int, int, bool]]:
    hidden, middle = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    out_bias = config.get("attention_bias", False)
    qkv_bias = out_bias or config["model_type"] == "qwen2"
    mlp_bias = config.get("mlp_bias", False)
    attention = {
        "self_attn.q_proj": (queries, hidden, qkv_bias),
        "self_attn.k_proj": (keys, hidden, qkv_bias),
        "self_attn.v_proj": (keys, hidden, qkv_bias),
        "self_attn.o_proj": (hidden, queries, out_bias),
    }
    sparse = "num_experts" in config and layer not in config.get("mlp_only_layers", ())
    if not sparse or (layer + 1) % config.get("decoder_sparse_step", 1):
        return attention | _mlp("mlp", hidden, middle, bias=mlp_bias)
    experts = {"mlp.gate": (config["num_experts"], hidden, False)}
    for expert in range(config["num_experts"]):
        name = f"mlp.experts.{expert}"
        experts |= _mlp(name, hidden, config["moe_intermediate_size"], bias=mlp_bias)
    return attention | experts


def _mlp(name: str, hidden: int, middle: int, *, bias: bool) -> dict[str, tuple[int, int, bool]]:
    return {
        f"{name}.gate_proj": (middle, hidden, bias),
        f"{name}.up_proj": (middle, hidden, bias),
        f"{name}.down_proj": (hidden, middle, bias),
    }


def _write_tokenizer(directory: Path, length: int) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("i", "n"), ("Ġ", "the")]
    words = [*SPECIALS, *letters, *("".join(pair) for pair in merges)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[1],
            "eos_token": SPECIALS[EOS],
            "pad_token": SPECIALS[0],
            "unk_token": SPECIALS[0],
            "add_bos_token": False,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": length,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def scratch() -> Path:
    """Return a folder that goes when the tests end."""
    return Path(_scratch().name)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    scratch = tempfile.TemporaryDirectory(prefix="pd-tests-")
    atexit.register(scratch.cleanup)
    return scratch

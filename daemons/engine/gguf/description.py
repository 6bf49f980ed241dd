"""What a GGUF header says of a model, as a ``config.json`` says it."""

from __future__ import annotations

from typing import Any

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.header import Header

# ggml's name of an architecture: Hugging Face's, and its model_type.
ARCHITECTURES = {
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
}
_FLOAT_DIGITS = 7  # a header holds fp32, a config.json decimals
_GEMMA_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}  # its scores are scaled by another size


def config_of(header: Header, *, rope_divisors: tuple[float, ...] = ()) -> dict[str, Any]:
    """Return the ``config.json`` of a model; ``rope_divisors`` are its ``rope_freqs.weight``.

    Raises:
        OperatorError: an architecture or a feature that is not read from GGUF.
        KeyError: a fact is missing.
    """
    own, kind = header.own, header.architecture
    if kind not in ARCHITECTURES or (kind == "llama" and own("expert_count")):
        raise OperatorError(
            f"GGUF files of the architecture {kind}{' with experts' * (kind == 'llama')} are not"
            " read",
            f"read are {', '.join(ARCHITECTURES)}; others as a Hugging Face directory",
        )
    name, model_type = ARCHITECTURES[kind]
    hidden, heads = _needed(header, "embedding_length"), _needed(header, "attention.head_count")
    head_dim = own("attention.key_length") or hidden // heads
    return {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _needed(header, "feed_forward_length"),
        "num_hidden_layers": _needed(header, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _needed(header, "context_length"),
        "rms_norm_eps": _decimal(_needed(header, "attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": kind == "llama" and "blk.0.attn_q.bias" in header.tensors,
        "torch_dtype": "float32",
        **_rope(header, rope_divisors),
        **(_experts(header) if kind == "qwen3moe" else {}),
        **(_gemma(header, hidden // heads, head_dim) if kind.startswith("gemma") else {}),
        **special_ids(header),
    }


def special_ids(header: Header) -> dict[str, int]:
    """Return the ids of the tokens that begin, end and fill a text, where they are told."""
    words = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {
        name: header.facts.get(f"tokenizer.ggml.{word}_token_id") for name, word in words.items()
    }
    return {f"{name}_token_id": number for name, number in found.items() if number is not None}


def _rope(header: Header, divisors: tuple[float, ...]) -> dict[str, Any]:
    own = header.own
    rope: dict[str, Any] = {"rope_type": own("rope.scaling.type", "none")}
    if rope["rope_type"] in ("none", ""):
        rope["rope_type"] = "default"
    if rope["rope_type"] not in ("default", "linear", "yarn"):
        raise OperatorError(f"GGUF files with rotations of type {rope['rope_type']} are not read")
    if rope["rope_type"] != "default":
        rope["factor"] = _decimal(_needed(header, "rope.scaling.factor"))
    words = {"original_context_length": "original_max_position_embeddings"}
    words |= {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    for theirs, ours in words.items():
        if own(f"rope.scaling.{theirs}") is not None:
            rope[ours] = own(f"rope.scaling.{theirs}")
    if divisors:
        rope["divisors"] = list(divisors)
    theta = _decimal(own("rope.freq_base", 10000.0))
    if header.architecture != "gemma3":
        return {"rope_parameters": {**rope, "rope_theta": theta}}
    near = _decimal(own("rope.freq_base_swa", 10000.0))
    return {
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": near},
        }
    }


def _experts(header: Header) -> dict[str, Any]:
    return {
        "num_experts": _needed(header, "expert_count"),
        "num_experts_per_tok": _needed(header, "expert_used_count"),
        "moe_intermediate_size": _needed(header, "expert_feed_forward_length"),
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }


def _gemma(header: Header, width_per_head: int, head_dim: int) -> dict[str, Any]:
    kind, own = header.architecture, header.own
    is_27b = _needed(header, "block_count") == _GEMMA_LAYERS_OF_27B[kind]
    capped = {
        "attn_logit_softcapping": own("attn_logit_softcapping"),
        "final_logit_softcapping": own("final_logit_softcapping"),
    }
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width_per_head if is_27b else head_dim,
        "sliding_window": _needed(header, "attention.sliding_window"),
        **(capped if kind == "gemma2" else {"sliding_window_pattern": 6}),
    }


def _needed(header: Header, name: str) -> Any:
    return header.facts[f"{header.architecture}.{name}"]


def _decimal(value: float) -> float:
    return float(f"{value:.{_FLOAT_DIGITS}g}")

"""Gemma 2: norms on both sides of attention and MLP, soft-caps, a window in every other layer."""

from __future__ import annotations

from typing import Any

from daemons.engine.models.spec import (
    FULL,
    SLIDING,
    DecoderSpec,
    Norms,
    decoder_spec,
    unserved,
    windows_by_type,
)

NORMS = Norms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Gemma 2."""
    types = [FULL if layer % 2 else SLIDING for layer in range(config["num_hidden_layers"])]
    return decoder_spec(
        config,
        windows=windows_by_type(config, config["sliding_window"], types),
        softcap=config.get("attn_logit_softcapping"),
        **gemma_differences(config),
    )


def gemma_differences(config: dict[str, Any]) -> dict[str, Any]:
    """Return in what Gemma 2 and 3 both differ from Llama."""
    if config.get("use_bidirectional_attention"):
        raise unserved("attention in both directions")
    bias = bool(config.get("attention_bias", False))
    return {
        "scale": config["query_pre_attn_scalar"] ** -0.5,
        "tied": True,
        "norms": NORMS,
        "norm_offset": 1.0,
        "embedding_scale": config["hidden_size"] ** 0.5,
        "logits_softcap": config.get("final_logit_softcapping"),
        "qkv_bias": bias,
        "out_bias": bias,
    }

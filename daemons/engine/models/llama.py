"""Llama 2 and 3, SmolLM2, and whatever calls itself one: the decoder as it is."""

from __future__ import annotations

from typing import Any

from daemons.engine.models.spec import DecoderSpec, decoder_spec


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Llama."""
    bias = bool(config.get("attention_bias", False))
    return decoder_spec(
        config, qkv_bias=bias, out_bias=bias, mlp_bias=bool(config.get("mlp_bias", False))
    )

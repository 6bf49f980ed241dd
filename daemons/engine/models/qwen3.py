"""Qwen 3: a Llama that norms queries and keys per head; upper layers may have a window."""

from __future__ import annotations

from typing import Any

from daemons.engine.models.qwen2 import upper_windows
from daemons.engine.models.spec import DecoderSpec, decoder_spec


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Qwen 3."""
    bias = bool(config.get("attention_bias", False))
    return decoder_spec(
        config, windows=upper_windows(config), qkv_bias=bias, out_bias=bias, qk_norm=True
    )

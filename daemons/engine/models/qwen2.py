"""Qwen 2 and 2.5: a Llama with biases on queries, keys, values; upper layers may have a window."""

from __future__ import annotations

from typing import Any

from daemons.engine.models.spec import FULL, SLIDING, DecoderSpec, decoder_spec, windows_by_type


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Qwen 2 or 2.5."""
    return decoder_spec(config, windows=upper_windows(config), qkv_bias=True)


def upper_windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    """Return the windows, by layer, of a configuration in Qwen's words."""
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    lowest = config.get("max_window_layers", 28)
    types = [
        SLIDING if window is not None and layer >= lowest else FULL
        for layer in range(config["num_hidden_layers"])
    ]
    return windows_by_type(config, window, types)

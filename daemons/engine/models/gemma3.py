"""Gemma 3, text: a Gemma 2 with normed queries and keys in the place of capped scores.

Layers with a window rotate by a base of their own, and are never scaled.
"""

from __future__ import annotations

from typing import Any

from daemons.engine.models.gemma2 import gemma_differences
from daemons.engine.models.spec import (
    FULL,
    SLIDING,
    DecoderSpec,
    decoder_spec,
    unserved,
    windows_by_type,
)
from daemons.engine.rope import Rope, rope_of


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Gemma 3."""
    if config.get("attn_logit_softcapping") is not None:
        raise unserved("a Gemma 3 with attn_logit_softcapping")
    every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    types = [
        SLIDING if (layer + 1) % every else FULL for layer in range(config["num_hidden_layers"])
    ]
    types = config.get("layer_types") or types
    near, far = _ropes(config)
    return decoder_spec(
        config,
        windows=windows_by_type(config, config["sliding_window"], types),
        ropes=tuple(near if kind == SLIDING else far for kind in types),
        qk_norm=True,
        **gemma_differences(config),
    )


def _ropes(config: dict[str, Any]) -> tuple[Rope, Rope]:
    """Return the rotations of layers with and without a window."""
    both = config.get("rope_parameters") or {}
    if SLIDING in both:
        return rope_of({"rope_parameters": both[SLIDING]}), rope_of({"rope_parameters": both[FULL]})
    return Rope(float(config.get("rope_local_base_freq", 1e4))), rope_of(
        {"rope_theta": 1e6, **config}
    )

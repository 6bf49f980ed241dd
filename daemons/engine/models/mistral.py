"""Mistral: a Llama whose layers all have the same window, if the configuration has one."""

from __future__ import annotations

from typing import Any

from daemons.engine.models.spec import DecoderSpec, decoder_spec, unserved


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Mistral."""
    if config.get("layer_types"):
        raise unserved("a Mistral with layer_types")
    window = config.get("sliding_window")
    return decoder_spec(config, windows=(window,) * config["num_hidden_layers"])

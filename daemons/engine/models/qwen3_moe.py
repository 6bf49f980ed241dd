"""Qwen 3 with experts: a Qwen 3 where most layers choose a few of many small MLPs per token."""

from __future__ import annotations

from typing import Any

from daemons.engine.models.spec import DecoderSpec, ExpertsSpec, decoder_spec


def read(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a Qwen 3 with experts."""
    bias = bool(config.get("attention_bias", False))
    layers = config["num_hidden_layers"]
    # Unlike in the dense Qwen 3, a window that is used holds in every layer.
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return decoder_spec(
        config,
        windows=(window,) * layers,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        experts=ExpertsSpec(
            experts=config["num_experts"],
            chosen=config["num_experts_per_tok"],
            intermediate_size=config["moe_intermediate_size"],
            renormed=bool(config.get("norm_topk_prob", False)),
            layers=_sparse_layers(config),
        ),
    )


def _sparse_layers(config: dict[str, Any]) -> tuple[int, ...]:
    dense = config.get("mlp_only_layers") or ()
    step = config.get("decoder_sparse_step", 1)
    return tuple(
        layer
        for layer in range(config["num_hidden_layers"])
        if layer not in dense and (layer + 1) % step == 0
    )

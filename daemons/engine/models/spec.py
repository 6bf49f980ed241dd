"""What has to be known about a dense decoder besides its weights, read from ``config.json``.

A feature that would change the tokens and that is not served is an error here, never ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.cluster.errors import OperatorError
from daemons.engine.rope import Rope, rope_of


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and flags of a model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    positions: int  # the longest context it was made for, in tokens
    tied: bool  # the vocabulary's projection is the embedding
    windows: tuple[int | None, ...]  # by layer: tokens that one sees, itself included; None: all
    rope: Rope
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool  # queries and keys are normed per head before they are rotated


def llama(config: dict[str, Any]) -> Spec:
    """Return the specification of a Llama (also SmolLM2, and whatever calls itself one)."""
    bias = bool(config.get("attention_bias", False))
    return _spec(config, qkv_bias=bias, out_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))


def mistral(config: dict[str, Any]) -> Spec:
    """Return the specification of a Mistral whose window, if any, is never reached."""
    window = config.get("sliding_window")
    if window is not None and window < config["max_position_embeddings"]:
        raise _unserved(f"a sliding window of {window} tokens")
    return _spec(config)


def qwen2(config: dict[str, Any]) -> Spec:
    """Return the specification of a Qwen 2 or 2.5."""
    _refuse_windows(config)
    return _spec(config, qkv_bias=True)


def qwen3(config: dict[str, Any]) -> Spec:
    """Return the specification of a Qwen 3."""
    _refuse_windows(config)
    bias = bool(config.get("attention_bias", False))
    return _spec(config, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _spec(
    config: dict[str, Any],
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> Spec:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise _unserved(f"hidden_act {activation!r}")
    if config.get("quantization_config"):
        raise _unserved("a quantised checkpoint")
    heads = config["num_attention_heads"]
    return Spec(
        architecture=config["architectures"][0],
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate_size=config["intermediate_size"],
        norm_eps=float(config["rms_norm_eps"]),
        positions=config["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings", False)),
        windows=(None,) * config["num_hidden_layers"],
        rope=rope_of(config),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def _refuse_windows(config: dict[str, Any]) -> None:
    kinds = set(config.get("layer_types") or ())
    if config.get("use_sliding_window") or kinds - {"full_attention"}:
        raise _unserved("a sliding window")


def _unserved(feature: str) -> OperatorError:
    return OperatorError(
        f"{feature} is not served", "choose another model; daemons/engine/models lists them"
    )

"""What has to be known about a model besides its weights.

:class:`Spec` is all that the engine, the pool and the cores read, whoever runs the model;
:class:`DecoderSpec` is what our own decoder needs on top, read from ``config.json``. A feature that
would change the tokens and that is not served is an error here, never ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Rule
from daemons.engine.config import EngineConfig
from daemons.engine.rope import Rope, rope_of

SLIDING, FULL = "sliding_attention", "full_attention"
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a model and of its cache."""

    architecture: str
    vocab_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int  # the longest context it was made for, in tokens
    rules: tuple[Rule, ...]  # by layer

    @property
    def windows(self) -> tuple[int | None, ...]:
        """By layer: the tokens that one sees, itself included; None: all."""
        return tuple(rule.window for rule in self.rules)


class Norms(msgspec.Struct, frozen=True, kw_only=True):
    """What a layer's norms are called in the checkpoint; None: there is none at that place."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


class ExpertsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts in the place of some layers' MLP."""

    experts: int
    chosen: int  # of them for each token
    intermediate_size: int
    renormed: bool  # the weights of the chosen sum to one
    layers: tuple[int, ...]  # those that have one


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """In which ways a model is our decoder."""

    model: Spec
    hidden_size: int
    intermediate_size: int
    norm_eps: float
    tied: bool  # the vocabulary's projection is the embedding
    ropes: tuple[Rope, ...]  # by layer
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # queries and keys are normed per head before they are rotated
    norms: Norms = Norms()
    norm_offset: float = 0.0  # what is added to every norm's weight
    embedding_scale: float = 1.0
    logits_softcap: float | None = None  # logits become softcap * tanh(logits / softcap)
    experts: ExpertsSpec | None = None


def decoder_spec(
    config: dict[str, Any],
    *,
    windows: tuple[int | None, ...] = (),
    scale: float | None = None,
    softcap: float | None = None,
    ropes: tuple[Rope, ...] = (),
    tied: bool = False,
    **differences: Any,
) -> DecoderSpec:
    """Return the specification that a ``config.json`` in Llama's words describes.

    Args:
        config: its content.
        windows: by layer; none for full attention everywhere.
        scale: of the scores; None for ``head_dim ** -0.5``.
        softcap: of the scores.
        ropes: by layer; none for the configuration's own everywhere.
        tied: what holds where the configuration does not say.
        differences: fields of :class:`DecoderSpec` that are not as in Llama.

    Raises:
        OperatorError: a feature that is not served.
        KeyError: a size that is missing.
    """
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise unserved(f"hidden_act {activation!r}")
    if config.get("quantization_config"):
        raise unserved("a quantised checkpoint")
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    positions = config["max_position_embeddings"]
    model = Spec(
        architecture=config["architectures"][0],
        vocab_size=config["vocab_size"],
        layers=layers,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        positions=positions,
        rules=tuple(
            Rule(window if window is None or window < positions else None, scale, softcap)
            for window in windows or (None,) * layers
        ),
    )
    return DecoderSpec(
        model=model,
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        norm_eps=float(config["rms_norm_eps"]),
        tied=bool(config.get("tie_word_embeddings", tied)),
        ropes=ropes or (rope_of(config),) * layers,
        activation=activation,
        **differences,
    )


def windows_by_type(
    config: dict[str, Any], window: int | None, types: list[str]
) -> tuple[int | None, ...]:
    """Return the windows of a configuration's ``layer_types``; ``types`` where it has none.

    Raises:
        OperatorError: a type of layer that is not served.
    """
    found = config.get("layer_types") or types
    others = sorted(set(found) - {SLIDING, FULL})
    if others:
        raise unserved(f"a layer of type {', '.join(others)}")
    return tuple(window if kind == SLIDING else None for kind in found)


def unserved(feature: str) -> OperatorError:
    """Return the error for a feature that would change the tokens."""
    return OperatorError(f"{feature} is not served", "choose another model; README lists them")


def max_model_len(config: EngineConfig, positions: int) -> int:
    """Return the longest text that is served, in tokens.

    Raises:
        OperatorError: longer than the model was made for.
    """
    if config.max_model_len > positions:
        raise OperatorError(
            f"engine.max_model_len is {config.max_model_len}, the model was made for {positions}",
            "set it to 0 for the model's own",
        )
    return config.max_model_len or positions

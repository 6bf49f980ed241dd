"""The models that are served: a new one is a file here and a line in :data:`MODELS`.

What is not there but in ``breadth.BREADTH`` is run by transformers' classes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Attend
from daemons.engine.batch import Batch
from daemons.engine.config import Weights
from daemons.engine.device import Place
from daemons.engine.models import (
    decoder,
    gemma2,
    gemma3,
    llama,
    mistral,
    qwen2,
    qwen3,
    qwen3_moe,
)
from daemons.engine.models.breadth import BREADTH, INSTALL, borrow
from daemons.engine.models.spec import DecoderSpec, Spec
from daemons.engine.native import decoder as native
from daemons.engine.native.abi import Team
from daemons.engine.quant_linear import forms_of
from daemons.engine.weights import Checkpoint, read_json


class Model(Protocol):
    """What the engine needs of a model; it knows nothing of rooms, pages or sampling."""

    @property
    def spec(self) -> Spec: ...
    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor: ...
    def logits(self, rows: torch.Tensor) -> torch.Tensor: ...


# By the first of "architectures" in config.json.
MODELS: dict[str, Callable[[dict[str, Any]], DecoderSpec]] = {
    "Gemma2ForCausalLM": gemma2.read,
    "Gemma3ForCausalLM": gemma3.read,
    "LlamaForCausalLM": llama.read,
    "MistralForCausalLM": mistral.read,
    "Qwen2ForCausalLM": qwen2.read,
    "Qwen3ForCausalLM": qwen3.read,
    "Qwen3MoeForCausalLM": qwen3_moe.read,
}


def read_spec(directory: Path) -> DecoderSpec:
    """Return what ``config.json`` says of a model.

    Raises:
        OperatorError: an architecture or a feature that is not served, or a broken file.
    """
    config = read_json(directory / "config.json")
    read = _reader(config, directory)
    try:
        return read(config)
    except (KeyError, TypeError, ValueError) as error:
        raise OperatorError(f"{directory / 'config.json'}: {error!r}", "is it complete?") from error


def load_model(
    directory: Path, place: Place, team: Team | None = None, weights: Weights = "auto"
) -> tuple[Model, str]:
    """Return a model with its weights, and the hash that names it in a fingerprint.

    With a ``team`` the compiled kernels run it, where they serve it.

    Rounded weights give other keys and values, so their kind is part of the hash.

    Raises:
        OperatorError: as :func:`read_spec`; also for weights that do not fit it, or that are to be
            rounded where transformers runs the model.
    """
    name = _architecture(read_json(directory / "config.json"))
    checkpoint = Checkpoint(directory, place)
    if name in BREADTH:
        if weights != "auto":
            raise OperatorError(
                f"engine.weights is {weights}, and {name} is run by transformers' classes",
                "set it to auto; only our own decoder rounds weights",
            )
        borrowed = borrow(directory, name, place)
        return borrowed, checkpoint.digest(repr(borrowed.spec).encode())
    known = read_spec(directory)
    digest = checkpoint.digest(repr(known).encode())
    digest += "" if weights == "auto" else f".{weights}"
    if team is not None and native.serves(known, place):
        return native.build(known, checkpoint, place, team, weights), digest
    return decoder.build(known, checkpoint, place, forms_of(weights)), digest


def _reader(config: dict[str, Any], directory: Path) -> Callable[[dict[str, Any]], DecoderSpec]:
    name = _architecture(config)
    try:
        return MODELS[name]
    except KeyError:
        raise OperatorError(
            f"{directory}: the architecture {name} is not served",
            f"served: {', '.join(sorted(MODELS))}; with {INSTALL} also {', '.join(BREADTH)}",
        ) from None


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures") or ["(none)"]
    return str(names[0])

"""Other decoders: transformers' own classes, with our attention over our pages inside.

transformers is an optional extra (``breadth``) and is imported only when such a model is loaded.
Served are the architectures of :data:`BREADTH`, each of which the tests compare with ``generate``.
When a model is loaded, one token is run with an attention that only takes notes: what each layer
asks for there becomes its rule, and a model whose layers ask for more than a rule says is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Attend, Rule
from daemons.engine.batch import Batch
from daemons.engine.device import Place
from daemons.engine.models.spec import Spec, unserved

BREADTH = (
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "Cohere2ForCausalLM",
    "CohereForCausalLM",
    "Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "GlmForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "HeliumForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "Ministral3ForCausalLM",
    "MinistralForCausalLM",
    "MixtralForCausalLM",
    "NemotronForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoeForCausalLM",
    "OlmoForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "PhimoeForCausalLM",
    "Qwen2MoeForCausalLM",
    "SeedOssForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)
INSTALL = "pip install 'pd[breadth]'"

# The rotations that depend on the position alone. "dynamic" and "longrope" are others for a text
# that is longer than the original context, so no text may be.
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")
_HARMLESS = {"dropout", "position_ids", "use_cache"}  # of what layers say to their attention
_names = count()  # each loaded model has an attention of its own in transformers' table


@dataclass(frozen=True, slots=True)
class _Note:
    """What one layer asked for."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    rule: Rule
    others: tuple[str, ...]  # what was asked for beyond a rule


@dataclass(slots=True)
class _Seat:
    """Where a forward leaves what the layers, and the head, need of it."""

    attend: Attend | None = None
    rules: tuple[Rule, ...] = ()
    notes: dict[int, _Note] = field(default_factory=dict)
    rows: torch.Tensor | None = None  # for the head in the place of the body
    output: Callable[..., Any] = dict  # what the body's answers are made with

    def attention(
        self,
        module: Any,
        query: torch.Tensor,  # [1, heads, tokens, head_dim], as are the next two
        key: torch.Tensor,
        value: torch.Tensor,
        mask: object,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **others: object,
    ) -> tuple[torch.Tensor, None]:
        """Attend as transformers asks for it; returns ``[1, tokens, heads, head_dim]``."""
        layer: int = module.layer_idx
        if self.attend is None:
            rule = Rule(sliding_window, scaling, softcap)
            extra = tuple(
                name
                for name, value in others.items()
                if value is not None and name not in _HARMLESS
            )
            self.notes[layer] = _Note(
                query.shape[1], key.shape[1], key.shape[3], value.shape[3], rule, extra
            )
            return torch.zeros_like(query).transpose(1, 2), None
        kv = torch.cat((key[0], value[0])).transpose(0, 1)
        mixed = self.attend(layer, query[0].transpose(0, 1), kv, self.rules[layer])
        return mixed.view(1, len(mixed), query.shape[1], -1), None

    def body(self, *args: object, **kwargs: object) -> Any:
        """Stand where the body was, so that the family's own head runs over some rows alone."""
        assert self.rows is not None
        return self.output(last_hidden_state=self.rows.unsqueeze(0))


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A model of transformers with its weights."""

    spec: Spec
    _seat: _Seat
    _body: Callable[..., Any]
    _head: Callable[..., Any]  # the whole model, with the seat in the place of its body

    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor:
        """Return what the body leaves of each token, ``[tokens, hidden]``."""
        self._seat.attend = attend
        try:
            left = self._body(
                input_ids=batch.ids.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
            )
        finally:
            self._seat.attend = None
        rows: torch.Tensor = left.last_hidden_state[0]
        return rows

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the raw logits of rows of :meth:`hidden`, fp32 ``[rows, vocabulary]``."""
        self._seat.rows = rows
        try:
            logits: torch.Tensor = self._head(
                input_ids=torch.zeros(1, len(rows), dtype=torch.int64, device=rows.device),
                use_cache=False,
            ).logits[0]
        finally:
            self._seat.rows = None
        return logits.float()


@torch.inference_mode()
def borrow(directory: Path, architecture: str, place: Place) -> Borrowed:
    """Return a model of :data:`BREADTH`, its weights read by transformers from safetensors.

    Raises:
        OperatorError: transformers is missing, cannot read the model, or asks for attention that
            pages cannot give.
    """
    transformers = _transformers(architecture)
    seat, name = _Seat(), f"pd_paged_{next(_names)}"
    transformers.AttentionInterface.register(name, seat.attention)
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=place.dtype,
            attn_implementation=name,
            use_safetensors=True,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise OperatorError(f"{directory}: transformers cannot load it: {error}") from error
    model = model.eval().to(place.device)
    body = model.base_model
    token = torch.zeros(1, 1, dtype=torch.int64, device=place.device)
    seat.output = type(body(input_ids=token, position_ids=token, use_cache=False))
    spec = _spec(architecture, model.config, seat.notes)
    seat.rules = spec.rules
    delattr(model, model.base_model_prefix)
    setattr(model, model.base_model_prefix, seat.body)
    return Borrowed(spec, seat, body, model)


def _spec(architecture: str, config: Any, notes: dict[int, _Note]) -> Spec:
    layers = config.num_hidden_layers
    if sorted(notes) != list(range(layers)):
        raise unserved(f"{architecture} (layers without attention over pages)")
    shapes = {(note.heads, note.kv_heads, note.head_dim, note.value_dim) for note in notes.values()}
    heads, kv_heads, head_dim, value_dim = next(iter(shapes))
    if len(shapes) != 1 or head_dim != value_dim:
        raise unserved(f"{architecture} (heads of several sizes)")
    extra = sorted({name for note in notes.values() for name in note.others})
    if extra:
        raise unserved(f"{architecture} (attention with {', '.join(extra)})")
    positions = _positions(config)
    return Spec(
        architecture=architecture,
        vocab_size=config.vocab_size,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        positions=positions,
        rules=tuple(_reached(notes[layer].rule, positions) for layer in range(layers)),
    )


def _reached(rule: Rule, positions: int) -> Rule:
    if rule.window is None or rule.window < positions:
        return rule
    return Rule(None, rule.scale, rule.softcap)


def _positions(config: Any) -> int:
    """Return the longest text, in tokens, whose rotations do not depend on its length."""
    positions: int = config.max_position_embeddings
    ropes = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in ropes.values() if isinstance(value, dict)]
    for rope in nested or [ropes]:
        kind = rope.get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings")
            positions = min(positions, original or positions)
        elif kind not in _FIXED_ROPES:
            raise unserved(f"rotary positions of type {kind!r}")
    return positions


def _transformers(architecture: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise OperatorError(
            f"the architecture {architecture} is served through transformers, which is missing",
            INSTALL,
        ) from error
    return transformers

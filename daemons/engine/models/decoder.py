"""The decoder that most open models are, with a named point for each thing they differ in.

Projections that read the same input are one matrix; the vocabulary's projection runs only over
rows that ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from daemons.engine.attention import Attend
from daemons.engine.batch import Batch
from daemons.engine.device import Place
from daemons.engine.linear import Linear, linear
from daemons.engine.models.experts import Experts
from daemons.engine.models.spec import DecoderSpec, ExpertsSpec, Spec
from daemons.engine.quant_linear import Forms, Lookup, forms_of
from daemons.engine.rope import Rope, Turns, frequencies, rotate_, turns
from daemons.engine.weights import Checkpoint

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True, slots=True)
class Mlp:
    """``down(activation(gate) * up)``."""

    gate_up: Linear
    down: Linear
    middle: int  # columns of gate, as many of up
    activation: str

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[tokens, hidden]`` for the same."""
        both = self.gate_up(rows)
        gate, up = both[:, : self.middle], both[:, self.middle :]
        opened = F.silu(gate) if self.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self.down(opened.mul_(up))


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer; norms are ``[hidden]``."""

    before_attention: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]
    out: Linear
    after_attention: torch.Tensor | None
    before_mlp: torch.Tensor
    mlp: Mlp | Experts
    after_mlp: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder with its weights.

    Attributes:
        rotations: the distinct ones, with their angles ``[head_dim / 2]``.
    """

    decoder_spec: DecoderSpec
    place: Place
    embedding: Lookup  # [tokens] to [tokens, hidden]
    layers: tuple[Layer, ...]
    norm: torch.Tensor  # [hidden]
    head: Linear
    rotations: dict[Rope, torch.Tensor]

    @property
    def spec(self) -> Spec:
        """What the engine has to know."""
        return self.decoder_spec.model

    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor:
        """Return what the last layer leaves of each token, ``[tokens, hidden]``, not yet normed."""
        stream = self.embedding(batch.ids)
        if self.decoder_spec.embedding_scale != 1.0:
            # Rounded as the weights are: models were trained with the rounded one.
            stream *= torch.tensor(self.decoder_spec.embedding_scale, dtype=stream.dtype)
        turned = {
            rope: turns(batch.positions, angles, self.place.dtype, rope.amplitude)
            for rope, angles in self.rotations.items()
        }
        for index, layer in enumerate(self.layers):
            turn = turned[self.decoder_spec.ropes[index]]
            mixed = self._attention(index, layer, stream, turn, attend)
            if layer.after_attention is not None:
                mixed = self._norm(mixed, layer.after_attention)
            stream = stream + mixed
            mixed = layer.mlp(self._norm(stream, layer.before_mlp))
            if layer.after_mlp is not None:
                mixed = self._norm(mixed, layer.after_mlp)
            stream = stream + mixed
        return stream

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the raw logits of rows of :meth:`hidden`, fp32 ``[rows, vocabulary]``."""
        logits = self.head(self._norm(rows, self.norm)).float()
        cap = self.decoder_spec.logits_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attention(
        self, index: int, layer: Layer, stream: torch.Tensor, turn: Turns, attend: Attend
    ) -> torch.Tensor:
        spec = self.spec
        normed = self._norm(stream, layer.before_attention)
        # [tokens, heads + 2 * kv_heads, head_dim]
        qkv = layer.qkv(normed).view(len(normed), -1, spec.head_dim)
        turning = qkv[:, : -spec.kv_heads]
        if layer.qk_norm is not None:
            plain = F.rms_norm(turning, (spec.head_dim,), None, self.decoder_spec.norm_eps)
            turning.copy_(plain * layer.qk_norm)
        rotate_(turning, turn)
        mixed = attend(index, qkv[:, : spec.heads], qkv[:, spec.heads :], spec.rules[index])
        return layer.out(mixed)

    def _norm(self, stream: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        eps = self.decoder_spec.norm_eps
        if weight.dtype is stream.dtype:
            return F.rms_norm(stream, weight.shape, weight, eps)
        return F.rms_norm(stream.float(), weight.shape, weight, eps).to(stream.dtype)


def build(
    spec: DecoderSpec, checkpoint: Checkpoint, place: Place, forms: Forms | None = None
) -> Decoder:
    """Return the model with its weights; raises OperatorError for a tensor that is not as told."""
    forms = forms or forms_of("auto")
    loading = _Loading(spec, checkpoint, forms)
    shape = (spec.model.vocab_size, spec.hidden_size)
    table = checkpoint.take("model.embed_tokens.weight", shape)
    if spec.tied:
        embedding, head = forms.tied(table)
    else:
        embedding, head = table.__getitem__, forms.head(checkpoint.take("lm_head.weight", shape))
    return Decoder(
        spec,
        place,
        embedding,
        tuple(loading.layer(index) for index in range(spec.model.layers)),
        loading.norm("model.norm", spec.hidden_size),
        head,
        {rope: frequencies(rope, spec.model.head_dim).to(place.device) for rope in spec.ropes},
    )


@dataclass(frozen=True, slots=True)
class _Loading:
    """Weights by the names that Llama gave them."""

    spec: DecoderSpec
    checkpoint: Checkpoint
    forms: Forms

    def layer(self, index: int) -> Layer:
        spec, name = self.spec, f"model.layers.{index}"
        head_dim, hidden = spec.model.head_dim, spec.hidden_size
        queries, keys = spec.model.heads * head_dim, spec.model.kv_heads * head_dim

        def norm(kind: str | None) -> torch.Tensor | None:
            return None if kind is None else self.norm(f"{name}.{kind}", hidden)

        qkv = [f"{name}.{part}" for part in QKV]
        experts = spec.experts
        sparse = experts is not None and index in experts.layers
        return Layer(
            self.norm(f"{name}.{spec.norms.before_attention}", hidden),
            self.fused(qkv, (queries, keys, keys), hidden, bias=spec.qkv_bias),
            self.qk_norm(f"{name}.self_attn") if spec.qk_norm else None,
            self.fused([f"{name}.self_attn.o_proj"], (hidden,), queries, bias=spec.out_bias),
            norm(spec.norms.after_attention),
            self.norm(f"{name}.{spec.norms.before_mlp}", hidden),
            self.experts(f"{name}.mlp", experts)
            if experts is not None and sparse
            else self.mlp(f"{name}.mlp", spec.intermediate_size),
            norm(spec.norms.after_mlp),
        )

    def norm(self, name: str, size: int) -> torch.Tensor:
        """Return a norm's weight; in fp32 where an offset would be lost in a shorter type."""
        if not self.spec.norm_offset:
            return self.checkpoint.take(f"{name}.weight", (size,))
        weight = self.checkpoint.take(f"{name}.weight", (size,), torch.float32)
        return weight + self.spec.norm_offset

    def qk_norm(self, name: str) -> torch.Tensor:
        model = self.spec.model
        query = self.norm(f"{name}.q_norm", model.head_dim)
        key = self.norm(f"{name}.k_norm", model.head_dim)
        return torch.cat((query.expand(model.heads, -1), key.expand(model.kv_heads, -1)))

    def mlp(self, name: str, middle: int) -> Mlp:
        hidden, bias = self.spec.hidden_size, self.spec.mlp_bias
        pair = [f"{name}.gate_proj", f"{name}.up_proj"]
        return Mlp(
            self.fused(pair, (middle, middle), hidden, bias=bias),
            self.fused([f"{name}.down_proj"], (hidden,), middle, bias=bias),
            middle,
            self.spec.activation,
        )

    def experts(self, name: str, spec: ExpertsSpec) -> Experts:
        mlps: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = tuple(
            self.mlp(f"{name}.experts.{number}", spec.intermediate_size)
            for number in range(spec.experts)
        )
        gate = self.checkpoint.take(f"{name}.gate.weight", (spec.experts, self.spec.hidden_size))
        return Experts(linear(gate), mlps, spec.chosen, spec.renormed)

    def fused(self, names: list[str], rows: tuple[int, ...], width: int, *, bias: bool) -> Linear:
        return self.forms.linear(
            self.checkpoint.take_rows([f"{name}.weight" for name in names], rows, width),
            self.checkpoint.take_rows([f"{name}.bias" for name in names], rows) if bias else None,
        )

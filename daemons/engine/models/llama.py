"""The dense decoder that most open models share, with a flag for each thing they differ in.

Llama 2 and 3, SmolLM2, Mistral without a window, Qwen 2, 2.5 and 3. Projections that read the same
input are one matrix; the vocabulary's projection runs only over rows that ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from daemons.engine.attention import Attend
from daemons.engine.batch import Batch
from daemons.engine.device import Place
from daemons.engine.linear import Linear, linear
from daemons.engine.models.spec import Spec
from daemons.engine.rope import Turns, frequencies, rotate_, turns
from daemons.engine.weights import Checkpoint

QKV = "self_attn.q self_attn.k self_attn.v"


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor  # [hidden]
    qkv: Linear
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]
    out: Linear
    post_norm: torch.Tensor  # [hidden]
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Llama:
    """A dense decoder with its weights."""

    spec: Spec
    place: Place
    embedding: torch.Tensor  # [vocabulary, hidden]
    layers: tuple[_Layer, ...]
    norm: torch.Tensor  # [hidden]
    head: Linear
    angles: torch.Tensor  # [head_dim / 2]

    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor:
        """Return what the last layer leaves of each token, ``[tokens, hidden]``, not yet normed."""
        stream = self.embedding[batch.ids]
        turn = turns(batch.positions, self.angles, self.place.dtype)
        for index, layer in enumerate(self.layers):
            normed = self._norm(stream, layer.input_norm)
            stream = stream + layer.out(self._attention(index, layer, normed, turn, attend))
            normed = self._norm(stream, layer.post_norm)
            stream = stream + layer.down(self._gated(layer.gate_up(normed)))
        return stream

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the raw logits of rows of :meth:`hidden`, fp32 ``[rows, vocabulary]``."""
        return self.head(self._norm(rows, self.norm)).float()

    def _attention(
        self,
        index: int,
        layer: _Layer,
        normed: torch.Tensor,
        turn: Turns,
        attend: Attend,
    ) -> torch.Tensor:
        spec = self.spec
        # [tokens, heads + 2 * kv_heads, head_dim]
        qkv = layer.qkv(normed).view(len(normed), -1, spec.head_dim)
        if layer.qk_norm is not None:
            turned = F.rms_norm(qkv[:, : -spec.kv_heads], (spec.head_dim,), None, spec.norm_eps)
            qkv[:, : -spec.kv_heads] = turned * layer.qk_norm
        rotate_(qkv[:, : -spec.kv_heads], turn)
        return attend(index, qkv[:, : spec.heads], qkv[:, spec.heads :])

    def _gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        middle = self.spec.intermediate_size
        return F.silu(gate_up[:, :middle]).mul_(gate_up[:, middle:])

    def _norm(self, stream: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(stream, weight.shape, weight, self.spec.norm_eps)


def build(spec: Spec, checkpoint: Checkpoint, place: Place) -> Llama:
    """Return the model with its weights; raises OperatorError for a tensor that is not as told."""
    embedding = checkpoint.take("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    head = embedding
    if not spec.tied:
        head = checkpoint.take("lm_head.weight", (spec.vocab_size, spec.hidden_size))
    return Llama(
        spec,
        place,
        embedding,
        tuple(_layer(spec, checkpoint, f"model.layers.{i}") for i in range(spec.layers)),
        checkpoint.take("model.norm.weight", (spec.hidden_size,)),
        linear(head),
        frequencies(spec.rope, spec.head_dim).to(place.device),
    )


def _layer(spec: Spec, checkpoint: Checkpoint, name: str) -> _Layer:
    hidden, middle = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def fused(parts: str, rows: tuple[int, ...], width: int, *, bias: bool) -> Linear:
        names = [f"{name}.{part}_proj" for part in parts.split()]
        return linear(
            checkpoint.take_rows([f"{n}.weight" for n in names], rows, width),
            checkpoint.take_rows([f"{n}.bias" for n in names], rows) if bias else None,
        )

    return _Layer(
        checkpoint.take(f"{name}.input_layernorm.weight", (hidden,)),
        fused(QKV, (queries, keys, keys), hidden, bias=spec.qkv_bias),
        _qk_norm(spec, checkpoint, name) if spec.qk_norm else None,
        fused("self_attn.o", (hidden,), queries, bias=spec.out_bias),
        checkpoint.take(f"{name}.post_attention_layernorm.weight", (hidden,)),
        fused("mlp.gate mlp.up", (middle, middle), hidden, bias=spec.mlp_bias),
        fused("mlp.down", (hidden,), middle, bias=spec.mlp_bias),
    )


def _qk_norm(spec: Spec, checkpoint: Checkpoint, name: str) -> torch.Tensor:
    query = checkpoint.take(f"{name}.self_attn.q_norm.weight", (spec.head_dim,))
    key = checkpoint.take(f"{name}.self_attn.k_norm.weight", (spec.head_dim,))
    return torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1)))

"""A decoder that runs whole forwards in the compiled kernels: one call a batch, one for logits.

It is built from the same specification and the same checkpoint as ``models.decoder``; where it does
not serve a specification, that one runs.
"""

from __future__ import annotations

import ctypes as c
from array import array
from dataclasses import dataclass, field

import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.attention import Attend, Rule
from daemons.engine.batch import Batch
from daemons.engine.config import Weights
from daemons.engine.device import Place
from daemons.engine.models.spec import DecoderSpec, Spec
from daemons.engine.native import abi
from daemons.engine.native.attention import LARGEST_GROUP, NativeAttention
from daemons.engine.quant import Eight, Four, eight, rounded
from daemons.engine.rope import frequencies
from daemons.engine.weights import Checkpoint


def serves(spec: DecoderSpec, place: Place) -> bool:
    """Say whether the kernels can run this model here; ``models.decoder`` runs every one."""
    model = spec.model
    widths = (spec.hidden_size, spec.intermediate_size, model.head_dim)
    return (
        place.is_cpu
        and spec.experts is None
        and all(width % 2 == 0 for width in widths)  # bf16 is multiplied in pairs
        and model.heads // model.kv_heads <= LARGEST_GROUP
        and len(set(spec.ropes)) <= abi.ROPES
    )


@dataclass(slots=True)
class NativeDecoder:
    """A decoder in the kernels' memory."""

    decoder_spec: DecoderSpec
    _team: abi.Team
    _model: abi.Model
    _store: _Store
    _stream: torch.Tensor  # of likeliest and scores, kept from one step to the next
    _scores: torch.Tensor  # the same

    @property
    def spec(self) -> Spec:
        """What the engine has to know."""
        return self.decoder_spec.model

    def hidden(self, batch: Batch, attend: Attend) -> torch.Tensor:
        """Return what the last layer leaves of each token, fp32 ``[tokens, hidden]``."""
        assert isinstance(attend, NativeAttention)
        stream = torch.empty(attend.batch.tokens, self.decoder_spec.hidden_size)
        self._forward(attend, stream.data_ptr())
        return stream

    def likeliest(self, attend: Attend, rows: array[int]) -> array[int]:
        """Run a forward and return the token with the largest logit for some of its rows.

        The lowest id among equals; -1 where a logit is a NaN or the largest is not finite. They are
        what :meth:`hidden` and :meth:`logits` lead to, without either in memory.
        """
        stream = self._kept_forward(attend)
        tokens = array("i", rows)
        fault = self._team.library.calls.pd_likeliest(
            c.byref(self._model),
            self._team.address,
            self._team.space,
            stream,
            rows.buffer_info()[0],
            len(rows),
            tokens.buffer_info()[0],
        )
        abi.checked(fault)
        return tokens

    def scores(self, attend: Attend, rows: array[int]) -> torch.Tensor:
        """Run a forward and return the raw logits of some of its rows, fp32 ``[rows, vocabulary]``.

        They are what :meth:`hidden` and :meth:`logits` lead to, and hold until the next call.
        """
        stream = self._kept_forward(attend)
        if len(self._scores) != len(rows):
            self._scores = torch.empty(len(rows), self.spec.vocab_size)
        fault = self._team.library.calls.pd_logits(
            c.byref(self._model),
            self._team.address,
            self._team.space,
            stream,
            rows.buffer_info()[0],
            len(rows),
            self._scores.data_ptr(),
        )
        abi.checked(fault)
        return self._scores

    def _kept_forward(self, attend: Attend) -> int:
        """Run a forward; returns the address of what it leaves."""
        assert isinstance(attend, NativeAttention)
        if len(self._stream) < attend.batch.tokens:
            self._stream = torch.empty(attend.batch.tokens, self.decoder_spec.hidden_size)
        stream = self._stream.data_ptr()
        self._forward(attend, stream)
        return stream

    def _forward(self, attend: NativeAttention, stream: int) -> None:
        fault = self._team.library.calls.pd_forward(
            c.byref(self._model),
            self._team.address,
            self._team.space,
            c.byref(attend.batch),
            attend.caches,
            stream,
        )
        abi.checked(fault)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the raw logits of rows of :meth:`hidden`, fp32 ``[rows, vocabulary]``."""
        rows = rows.contiguous()
        logits = torch.empty(len(rows), self.spec.vocab_size)
        fault = self._team.library.calls.pd_logits(
            c.byref(self._model),
            self._team.address,
            self._team.space,
            rows.data_ptr(),
            None,
            len(rows),
            logits.data_ptr(),
        )
        abi.checked(fault)
        return logits


def build(
    spec: DecoderSpec,
    checkpoint: Checkpoint,
    place: Place,
    team: abi.Team,
    weights: Weights = "auto",
) -> NativeDecoder:
    """Return the model; raises OperatorError for a tensor that is not as told."""
    store = _Store(spec, checkpoint, place, team.library, weights)
    model = spec.model
    shape = (model.vocab_size, spec.hidden_size)
    embedding = checkpoint.take("model.embed_tokens.weight", shape)
    head = embedding if spec.tied else checkpoint.take("lm_head.weight", shape)
    ropes = list(dict.fromkeys(spec.ropes))
    # Rounded as the weights are: models were trained with the rounded one.
    scale = float(torch.tensor(spec.embedding_scale, dtype=place.dtype))
    layers = [_layer(store, index, ropes.index(spec.ropes[index])) for index in range(model.layers)]
    angles = [store.kept(frequencies(rope, model.head_dim)) for rope in ropes]
    return NativeDecoder(
        spec,
        team,
        abi.Model(
            layers=(abi.Layer * model.layers)(*layers),
            norm=store.norm("model.norm", spec.hidden_size),
            head=store.matrix(head, None)
            if weights == "auto"
            else store.rounded(eight(head), None),
            embedding=None if spec.tied else store.kept(embedding),
            angles=(c.c_void_p * abi.ROPES)(*angles),
            amplitudes=(c.c_float * abi.ROPES)(*(rope.amplitude for rope in ropes)),
            layer_count=model.layers,
            ropes=len(ropes),
            hidden=spec.hidden_size,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            middle=spec.intermediate_size,
            vocabulary=model.vocab_size,
            is_bf16=place.dtype is torch.bfloat16,
            is_gelu=spec.activation != "silu",
            eps=spec.norm_eps,
            embedding_scale=scale,
            logits_softcap=spec.logits_softcap or 0.0,
        ),
        store,
        torch.empty(0),
        torch.empty(0),
    )


def _layer(store: _Store, index: int, rope: int) -> abi.Layer:
    spec, name = store.spec, f"model.layers.{index}"
    head_dim, hidden, middle = spec.model.head_dim, spec.hidden_size, spec.intermediate_size
    queries, keys = spec.model.heads * head_dim, spec.model.kv_heads * head_dim
    rule: Rule = spec.model.rules[index]
    norms = spec.norms

    def norm(kind: str | None) -> int | None:
        return None if kind is None else store.norm(f"{name}.{kind}", hidden)

    def fused(parts: str, rows: tuple[int, ...], width: int, *, bias: bool) -> int:
        return store.fused([f"{name}.{part}_proj" for part in parts.split()], rows, width, bias)

    attention = f"{name}.self_attn"
    return abi.Layer(
        before_attention=norm(norms.before_attention),
        after_attention=norm(norms.after_attention),
        before_mlp=norm(norms.before_mlp),
        after_mlp=norm(norms.after_mlp),
        query_norm=store.norm(f"{attention}.q_norm", head_dim) if spec.qk_norm else None,
        key_norm=store.norm(f"{attention}.k_norm", head_dim) if spec.qk_norm else None,
        qkv=fused(
            "self_attn.q self_attn.k self_attn.v",
            (queries, keys, keys),
            hidden,
            bias=spec.qkv_bias,
        ),
        out=fused("self_attn.o", (hidden,), queries, bias=spec.out_bias),
        gate_up=fused("mlp.gate mlp.up", (middle, middle), hidden, bias=spec.mlp_bias),
        down=fused("mlp.down", (hidden,), middle, bias=spec.mlp_bias),
        rope=rope,
        window=rule.window or 0,
        scale=head_dim**-0.5 if rule.scale is None else rule.scale,
        softcap=rule.softcap or 0.0,
    )


@dataclass(slots=True)
class _Store:
    """Weights by name, in the kernels' forms; what has an address here lives as long as this."""

    spec: DecoderSpec
    checkpoint: Checkpoint
    place: Place
    library: abi.Library
    weights: Weights
    _tensors: list[torch.Tensor] = field(default_factory=list)
    _matrices: list[int] = field(default_factory=list)

    def kept(self, tensor: torch.Tensor) -> int:
        tensor = tensor.contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()

    def norm(self, name: str, size: int) -> int:
        weight = self.checkpoint.take(f"{name}.weight", (size,), torch.float32)
        return self.kept(weight + self.spec.norm_offset)

    def fused(self, names: list[str], rows: tuple[int, ...], width: int, has_bias: object) -> int:
        weight = self.checkpoint.take_rows([f"{name}.weight" for name in names], rows, width)
        bias = None
        if has_bias:
            bias = self.checkpoint.take_rows([f"{name}.bias" for name in names], rows)
        if self.weights != "auto":
            return self.rounded(rounded(weight, self.weights), bias, is_gated=len(names) == 2)
        return self.matrix(weight, bias, is_gated=len(names) == 2)

    def matrix(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, is_gated: bool = False
    ) -> int:
        """Return the address of a packed copy; ``weight`` may go."""
        address: int | None = self.library.calls.pd_matrix_new(
            self.place.dtype is torch.bfloat16,
            weight.contiguous().data_ptr(),
            None if bias is None else bias.data_ptr(),
            *weight.shape,
            is_gated,
        )
        return self._held(address, weight.nbytes)

    def rounded(
        self, weight: Eight | Four, bias: torch.Tensor | None, *, is_gated: bool = False
    ) -> int:
        """Return the address of a packed copy of fewer bits; ``weight`` may go."""
        if isinstance(weight, Eight):
            bits, values, lows = 8, weight.values, None
            width = values.shape[1]
        else:
            bits, values, lows = 4, weight.nibbles, weight.lows.contiguous()
            width = values.shape[1] * 2
        values, scales = values.contiguous(), weight.scales.contiguous()
        address: int | None = self.library.calls.pd_rounded_new(
            self.place.dtype is torch.bfloat16,
            bits,
            values.data_ptr(),
            scales.data_ptr(),
            None if lows is None else lows.data_ptr(),
            None if bias is None else bias.data_ptr(),
            len(values),
            width,
            is_gated,
        )
        return self._held(address, values.nbytes)

    def head(self, weight: torch.Tensor) -> int:
        """Return the same of a vocabulary's projection."""
        if self.weights == "auto":
            return self.matrix(weight, None)
        return self.rounded(eight(weight), None)

    def _held(self, address: int | None, size_bytes: int) -> int:
        if not address:
            raise OperatorError(f"no memory for a weight of {size_bytes} bytes")
        self._matrices.append(address)
        return address

    def __del__(self) -> None:
        for address in self._matrices:
            self.library.calls.pd_matrix_free(address)

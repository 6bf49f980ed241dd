"""The weights of a GGUF file under the names, and in the order, of Hugging Face.

Nothing is written anywhere: a tensor is expanded from the mapped file when it is taken.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.header import Header, Stored, read_header

INSTALL = "pip install 'pd[convert]'"

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
GEMMA_PARTS = {
    **PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_ROPE = "rope_freqs.weight"


class GgufTensors:
    """A source of tensors for ``weights.Checkpoint``."""

    def __init__(self, path: Path) -> None:
        """Read the header and map the file.

        Raises:
            OperatorError: it cannot be read, holds what has no name, or gguf is missing.
        """
        self._header = read_header(path)
        self._quants = _quants()
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Hugging Face's name: ggml's, and which expert of it.
        self._where: dict[str, tuple[str, int | None]] = {}
        for name, stored in self._header.tensors.items():
            self._where.update(_names(self._header, name, stored, path))

    @property
    def names(self) -> Iterable[str]:
        """Hugging Face's names."""
        return self._where.keys()

    def rope_divisors(self) -> tuple[float, ...]:
        """Return what each pair's angle is divided by; nothing when the file does not say."""
        stored = self._header.tensors.get(_ROPE)
        return () if stored is None else tuple(self._expand(stored, None).tolist())

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor in fp32, expanded."""
        theirs, expert = self._where[name]
        weight = self._expand(self._header.tensors[theirs], expert)
        own = self._header.own
        if self._header.architecture == "llama" and ".attn_q." in theirs:
            weight = unpermute(weight, own("attention.head_count"))
        elif self._header.architecture == "llama" and ".attn_k." in theirs:
            weight = unpermute(
                weight, own("attention.head_count_kv") or own("attention.head_count")
            )
        elif self._header.architecture.startswith("gemma") and "norm" in theirs:
            weight = weight - 1  # ggml stores what Gemma multiplies with
        return torch.from_numpy(np.ascontiguousarray(weight))

    def raw(self, name: str) -> tuple[str, np.ndarray]:
        """Return shape and type in words, and the stored bytes."""
        theirs, expert = self._where[name]
        stored = self._header.tensors[theirs]
        return f"{list(stored.shape)} ggml {stored.kind}", self._stored(stored, expert).reshape(-1)

    def forget(self, name: str) -> None:
        """Give back the file's memory of a tensor."""
        theirs, expert = self._where[name]
        stored = self._header.tensors[theirs]
        size = self._stored(stored, expert).nbytes
        first = stored.offset + (expert or 0) * size
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (first + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self._data.madvise(mmap.MADV_DONTNEED, start, end - start)

    def _stored(self, stored: Stored, expert: int | None) -> np.ndarray:
        kind = self._quants.GGMLQuantizationType(stored.kind)
        shape = self._quants.quant_shape_to_byte_shape(stored.shape, kind)
        size = int(np.prod(shape))
        data = np.frombuffer(self._data, np.uint8, size, stored.offset).reshape(shape)
        return data if expert is None else data[expert]

    def _expand(self, stored: Stored, expert: int | None) -> np.ndarray:
        kind = self._quants.GGMLQuantizationType(stored.kind)
        data = self._stored(stored, expert)
        plain = {"F32": np.float32, "F16": np.float16}.get(kind.name)
        if plain is not None:
            return data.view(plain).astype(np.float32)
        try:
            expanded: np.ndarray = self._quants.dequantize(data, kind)
        except NotImplementedError as error:
            raise OperatorError(f"GGUF tensors of type {kind.name} are not read") from error
        return expanded


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return a q or k projection in the row order of Hugging Face.

    llama.cpp rotates neighbouring pairs of a head, Hugging Face its two halves; so GGUF files
    hold the rows of each head interleaved.

    Args:
        weight: ``[heads * head_dim, ...]``.
        heads: how many heads the rows are.
    """
    rows, rest = weight.shape[0], weight.shape[1:]
    pairs = weight.reshape(heads, rows // heads // 2, 2, *rest)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, *rest))


def _names(
    header: Header, name: str, stored: Stored, path: Path
) -> dict[str, tuple[str, int | None]]:
    found = _NAME.fullmatch(name)
    if name == _ROPE:
        return {}
    if found is None:
        raise OperatorError(f"{path}: a tensor of the name {name} is not known")
    layer, what, kind = found.groups()
    if layer is None and what in WHOLE:
        return {f"{WHOLE[what]}.{kind}": (name, None)}
    before = f"model.layers.{layer}"
    if what in _EXPERTS:
        part = _EXPERTS[what]
        return {
            f"{before}.mlp.experts.{expert}.{part}.{kind}": (name, expert)
            for expert in range(stored.shape[0])
        }
    parts = GEMMA_PARTS if header.architecture.startswith("gemma") else PARTS
    if layer is None or what not in parts:
        raise OperatorError(f"{path}: a tensor of the name {name} is not known")
    return {f"{before}.{parts[what]}.{kind}": (name, None)}


def _quants() -> Any:
    try:
        from gguf import quants
    except ImportError as error:
        raise OperatorError("the package gguf is needed to read a GGUF file", INSTALL) from error
    return quants

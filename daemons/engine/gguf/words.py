"""The tokenizer of a GGUF file, as Hugging Face's two files.

Byte-level BPE with the splits of :data:`SPLITS`, and SentencePiece's BPE; a file with another one
is served when its ``tokenizer.json`` lies beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.header import Header

_CONTROL, _USER = 3, 4  # GGUF token types: a special token, one that is found before all splits
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# By "tokenizer.ggml.pre": a pattern whose matches are split off; "" for GPT-2's own split.
SPLITS = {
    "default": "",
    "gpt-2": "",
    "smollm": "",
    "llama-bpe": rf"{_CONTRACTIONS}\p{{N}}{{1,3}}{_REST}",
    "llama3": rf"{_CONTRACTIONS}\p{{N}}{{1,3}}{_REST}",
    "qwen2": rf"{_CONTRACTIONS}\p{{N}}{_REST}",
}
_SPACE = "\u2581"


def tokenizer_of(header: Header) -> Tokenizer:
    """Return the tokenizer.

    Raises:
        OperatorError: of a kind that is not read.
    """
    kind = header.facts.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(header)
    elif kind == "llama":
        tokenizer = _sentence_piece(header)
    else:
        raise _unread(f"of the kind {kind}")
    words = header.facts["tokenizer.ggml.tokens"]
    kinds = header.facts["tokenizer.ggml.token_type"]
    typed = list(zip(words, kinds, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(w, normalized=False) for w, k in typed if k == _CONTROL]
    )
    tokenizer.add_tokens([AddedToken(w, normalized=False) for w, k in typed if k == _USER])
    if adds_bos(header):
        bos = header.facts["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{words[bos]} $A",
            pair=f"{words[bos]} $A {words[bos]} $B",
            special_tokens=[(words[bos], bos)],
        )
    return tokenizer


def tokenizer_config_of(header: Header) -> dict[str, Any]:
    """Return the ``tokenizer_config.json``."""
    words = header.facts["tokenizer.ggml.tokens"]
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {
        name: header.facts.get(f"tokenizer.ggml.{word}_token_id") for name, word in names.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos(header),
        **{f"{name}_token": words[number] for name, number in ids.items() if number is not None},
        "chat_template": header.facts.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": header.own("context_length"),
    }


def adds_bos(header: Header) -> bool:
    """Whether a text begins with a token of its own; SentencePiece's do unless told otherwise."""
    usual = header.facts.get("tokenizer.ggml.model") == "llama" or header.facts.get(
        "tokenizer.ggml.pre"
    ) in ("llama-bpe", "llama3")
    return bool(header.facts.get("tokenizer.ggml.add_bos_token", usual))


def _byte_level(header: Header) -> Tokenizer:
    split = header.facts.get("tokenizer.ggml.pre", "default")
    if split not in SPLITS:
        raise _unread(f"that splits by {split!r}")
    words = header.facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in header.facts["tokenizer.ggml.merges"]]
    whole = split in ("llama-bpe", "llama3")  # a word of the vocabulary is never taken apart
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: index for index, word in enumerate(words)},
            merges=merges,
            ignore_merges=whole,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(_splits(split)))
    tokenizer.decoder = decoders.ByteLevel()
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _splits(name: str) -> Iterator[Any]:
    if name == "smollm":
        yield pre_tokenizers.Digits(individual_digits=True)
    if SPLITS[name]:
        yield pre_tokenizers.Split(Regex(SPLITS[name]), "isolated")
    yield pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not SPLITS[name])


def _sentence_piece(header: Header) -> Tokenizer:
    words, scores = header.facts["tokenizer.ggml.tokens"], header.facts["tokenizer.ggml.scores"]
    vocabulary = {word: index for index, word in enumerate(words)}
    unknown = header.facts.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(words, scores, vocabulary),
            unk_token=None if unknown is None else words[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = header.facts.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    before = [normalizers.Prepend(_SPACE)] if prefixed else []
    after = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*before, spaces])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer


def _merges(
    words: list[str], scores: list[float], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Return the pairs that a SentencePiece vocabulary allows to join, the best result first.

    Source: Hugging Face's conversion: pairs of one word in the order of their parts' numbers.
    """
    ranked = []
    for index, word in enumerate(words):
        pairs = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
        known = [
            (vocabulary[a], vocabulary[b]) for a, b in pairs if a in vocabulary and b in vocabulary
        ]
        ranked += [(-scores[index], index, pair) for pair in sorted(known)]
    ranked.sort(key=lambda entry: entry[0])
    return [(words[a], words[b]) for _, _, (a, b) in ranked]


def _unread(what: str) -> OperatorError:
    return OperatorError(
        f"a GGUF file with a tokenizer {what} is not read",
        "put the model's tokenizer.json and tokenizer_config.json beside it",
    )

"""Model directories without weights, for tests of everything in front of the engine.

In the byte-level one a token is a byte: the ids of a text are ``list(text.encode())``.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS = 256, 257
CONTEXT_TOKENS = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def characters_of_bytes() -> list[str]:
    """Return the printable character that stands for each byte in a byte-level vocabulary."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(0x100)]


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are bytes, and two special ones."""
    vocabulary = {character: byte for byte, character in enumerate(characters_of_bytes())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    )
    return tokenizer


def space_tokenizer() -> Tokenizer:
    """Return a SentencePiece-like tokenizer: spaces are part of words, bytes as a last resort."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "\u2581the", "\u2581cat", "s", "\u2581sat", "\u4e2d"]
    tokenizer = Tokenizer(
        models.Unigram([(word, -float(n)) for n, word in enumerate(words)], 0, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    )
    return tokenizer


def tiny_model(directory: Path, *, context_tokens: int = CONTEXT_TOKENS) -> Path:
    """Write a model directory without weights, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    config = {"max_position_embeddings": context_tokens, "vocab_size": 258, "eos_token_id": EOS}
    (directory / "config.json").write_text(json.dumps(config))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory

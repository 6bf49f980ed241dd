from __future__ import annotations

from typing import Any

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.header import Header
from daemons.engine.gguf.words import SPLITS, adds_bos, tokenizer_config_of, tokenizer_of

LETTERS = ["<|s|>", "a", "b", "Ġ", "1", "2", "ab", "12", "Ġab", "<extra>"]


def byte_level(split: str, **changes: Any) -> Header:
    facts = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": LETTERS,
        "tokenizer.ggml.token_type": [3, *[1] * 8, 4],
        "tokenizer.ggml.merges": ["a b", "1 2", "Ġ ab"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    return Header({**facts, **changes}, {})


def pieces() -> Header:
    words = ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab", "▁ab", "<0xC3>", "<0xBC>"]
    facts = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [0, 0, -5.0, -6.0, -7.0, -1.0, -2.0, -3.0, 0, 0],
        "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 1, 6, 6],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Header(facts, {})


@pytest.mark.parametrize(
    ("split", "digits"),
    [("smollm", ["1", "2"]), ("gpt-2", ["12"]), ("llama-bpe", ["12"]), ("qwen2", ["1", "2"])],
)
def test_digits_are_split_as_each_family_does(split: str, digits: list[str]) -> None:
    header = byte_level(split, **{"tokenizer.ggml.add_bos_token": False})
    tokenizer = tokenizer_of(header)
    assert tokenizer.encode("<|s|>ab ab12<extra>").tokens == [
        "<|s|>", "ab", "Ġab", *digits, "<extra>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("ab ab").ids) == "ab ab"


def test_a_text_begins_with_a_token_of_its_own_where_the_family_says_so() -> None:
    assert tokenizer_of(byte_level("llama-bpe")).encode("ab").tokens == ["<|s|>", "ab"]
    assert tokenizer_of(byte_level("qwen2")).encode("ab").tokens == ["ab"]
    assert adds_bos(pieces())


def test_pieces_join_by_score_and_fall_back_to_bytes() -> None:
    tokenizer = tokenizer_of(pieces())
    # "▁a" is worth more than "ab", so "▁ab" can only come of those two.
    assert tokenizer.encode("ab ü").tokens == ["<s>", "▁ab", "▁", "<0xC3>", "<0xBC>"]
    assert tokenizer.decode(tokenizer.encode("ab ü").ids) == "ab ü"


def test_the_settings_name_the_special_tokens_that_are_told() -> None:
    found = tokenizer_config_of(byte_level("qwen2", **{"tokenizer.chat_template": "{{ x }}"}))
    assert (found["bos_token"], found["chat_template"]) == ("<|s|>", "{{ x }}")
    assert "eos_token" not in found


@pytest.mark.parametrize(
    "changes", [{"tokenizer.ggml.model": "bert"}, {"tokenizer.ggml.pre": "new-one"}]
)
def test_a_tokenizer_that_is_not_read_is_named_with_a_way_out(changes: dict[str, str]) -> None:
    assert "new-one" not in SPLITS
    with pytest.raises(OperatorError, match=r"bert|new-one") as caught:
        tokenizer_of(byte_level("qwen2", **changes))
    assert "tokenizer.json" in caught.value.hint

"""What a model directory tells a front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daemons.cluster.errors import OperatorError
from daemons.front.model_card import INLINE_CHARACTERS, load
from daemons.runtime.http import Refusal
from tests.support.tiny_model import CONTEXT_TOKENS, EOS, space_tokenizer, tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def amend(file: Path, **fields: Any) -> None:
    kept = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**kept, **fields}))


async def test_a_text_becomes_its_tokens_short_or_long(model: Path) -> None:
    amend(model / "config.json", max_position_embeddings=2 * INLINE_CHARACTERS)
    card = load(str(model))
    assert await card.tokens("hé") == tuple("hé".encode())
    long = "é " * INLINE_CHARACTERS
    assert await card.tokens(long) == tuple(long.encode())


async def test_a_text_that_no_tokens_can_hold_is_refused_before_it_is_tokenized(
    model: Path,
) -> None:
    card = load(str(model))
    most = CONTEXT_TOKENS * len("</s>")
    assert len(await card.tokens("x" * most)) == most
    with pytest.raises(Refusal, match=f"{most + 1} characters, .* at most {most}"):
        await card.tokens("x" * (most + 1))


def test_more_token_ids_than_the_model_takes_are_refused_before_they_are_looked_at(
    model: Path,
) -> None:
    card = load(str(model))
    assert len(card.checked([0] * (CONTEXT_TOKENS - 1))) == CONTEXT_TOKENS - 1
    with pytest.raises(Refusal, match=f"{CONTEXT_TOKENS} tokens, the limit is"):
        card.checked([999] * CONTEXT_TOKENS)


async def test_an_empty_prompt_is_refused(model: Path) -> None:
    card = load(str(model))
    with pytest.raises(Refusal, match="no tokens"):
        await card.tokens("")
    with pytest.raises(Refusal, match="no tokens"):
        card.checked([])


def test_token_ids_outside_the_vocabulary_are_refused(model: Path) -> None:
    card = load(str(model))
    assert card.checked([0, 257]) == (0, 257)
    for wrong in (-1, 258):
        with pytest.raises(Refusal, match=rf"token id {wrong} .* 0 to 257"):
            card.checked([1, wrong])


def test_the_context_length_is_that_of_the_configuration(model: Path) -> None:
    assert load(str(model)).context_tokens == CONTEXT_TOKENS


def test_the_end_of_sequence_comes_from_the_first_file_that_names_one(model: Path) -> None:
    assert load(str(model)).eos_token_ids == (EOS,)
    amend(model / "generation_config.json", eos_token_id=[7, 8])
    assert load(str(model)).eos_token_ids == (7, 8)
    (model / "generation_config.json").unlink()
    amend(model / "config.json", eos_token_id=None)
    amend(model / "tokenizer_config.json", eos_token={"content": "<s>"})
    assert load(str(model)).eos_token_ids == (256,)


def test_a_model_without_an_end_of_sequence_has_none(model: Path) -> None:
    amend(model / "config.json", eos_token_id=None)
    amend(model / "tokenizer_config.json", eos_token=None)
    assert load(str(model)).eos_token_ids == ()


def test_a_template_file_goes_before_the_tokenizers_setting(model: Path) -> None:
    (model / "chat_template.jinja").write_text("mine")
    chat = load(str(model)).chat
    assert chat is not None
    assert chat.render([]) == "mine"


def test_of_named_templates_the_default_is_taken(model: Path) -> None:
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    amend(model / "tokenizer_config.json", chat_template=named)
    chat = load(str(model)).chat
    assert chat is not None
    assert chat.render([]) == "yes"


def test_a_model_may_have_no_template(model: Path) -> None:
    amend(model / "tokenizer_config.json", chat_template=None)
    assert load(str(model)).chat is None


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_the_operators_error_and_names_itself(model: Path, file: str) -> None:
    (model / file).unlink()
    with pytest.raises(OperatorError, match=file):
        load(str(model))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
def test_a_broken_file_is_the_operators_error(model: Path, file: str) -> None:
    (model / file).write_text("{")
    with pytest.raises(OperatorError, match=file):
        load(str(model))


def test_a_configuration_without_a_context_length_is_the_operators_error(model: Path) -> None:
    amend(model / "config.json", max_position_embeddings=None)
    with pytest.raises(OperatorError, match="max_position_embeddings"):
        load(str(model))


def test_the_bytes_of_a_token_need_not_be_a_character(model: Path) -> None:
    card = load(str(model))
    assert [card.token_bytes(id_) for id_ in "é".encode()] == [b"\xc3", b"\xa9"]
    assert card.token_bytes(EOS) == b"</s>"


def test_the_bytes_of_a_byte_fallback_token_are_that_byte(model: Path) -> None:
    tokenizer = space_tokenizer()
    tokenizer.save(str(model / "tokenizer.json"))
    card = load(str(model))
    assert card.token_bytes(tokenizer.token_to_id("<0xE4>")) == b"\xe4"
    assert card.token_bytes(tokenizer.token_to_id("中")) == "中".encode()

"""From what a client wants to what a rank is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons.front.model_card import ModelCard, load
from daemons.front.sampling import LogprobWishes, samples_of, sampling, stop_strings
from daemons.protocol.api.sampling_params import Wishes
from daemons.protocol.causes import Cause
from daemons.protocol.generate import (
    BIASES_LIMIT,
    GRAMMAR_LIMIT,
    Grammar,
    GrammarKind,
    Sampling,
)
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import Refusal
from tests.support.tiny_model import EOS, tiny_model

KEY = RoomKey(99, 1)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    return load(str(tiny_model(Path(tmp_path_factory.mktemp("model")))))


def told(card: ModelCard, prompt_tokens: int = 10, limit: int = 100, **wishes: Any) -> Sampling:
    return sampling(
        msgspec.convert(wishes, Wishes),
        LogprobWishes(),
        key=KEY,
        prompt_tokens=prompt_tokens,
        limit=limit,
        default_max_tokens=64,
        card=card,
    )


def test_without_wishes_the_defaults_hold_and_the_room_is_the_seed(card: ModelCard) -> None:
    assert told(card) == Sampling(max_tokens=64, seed=99, eos_token_ids=(EOS,))


def test_null_is_the_same_as_absent(card: ModelCard) -> None:
    names = set(Wishes.__struct_fields__)
    assert told(card, **dict.fromkeys(names)) == told(card)


def test_every_wish_reaches_the_rank(card: ModelCard) -> None:
    asked = told(
        card,
        max_new_tokens=7,
        min_new_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        frequency_penalty=-1.0,
        presence_penalty=2,
        stop_token_ids=[5],
        ignore_eos=True,
        seed=3,
    )
    assert asked == Sampling(
        7, 2, 0.5, 0.9, 40, 0.1, 1.1, -1.0, 2.0, 3, (5,), (EOS,), ignore_eos=True
    )


def test_log_probabilities_reach_the_rank(card: ModelCard) -> None:
    asked = sampling(
        Wishes(),
        LogprobWishes(3, 2, 1),
        key=KEY,
        prompt_tokens=4,
        limit=9,
        default_max_tokens=1,
        card=card,
    )
    assert (asked.logprobs, asked.prompt_logprobs, asked.prompt_logprobs_start) == (3, 2, 1)


@pytest.mark.parametrize("name", ["seed", "sampling_seed"])
def test_a_seed_has_two_names_and_may_be_negative(card: ModelCard, name: str) -> None:
    assert told(card, **{name: 5}).seed == 5
    assert told(card, **{name: -1}).seed == 2**63 - 1


def test_a_top_k_beyond_the_vocabulary_is_all_of_it(card: ModelCard) -> None:
    assert told(card, top_k=card.vocabulary - 1).top_k == card.vocabulary - 1
    assert told(card, top_k=10**30).top_k == -1


def test_a_tiny_temperature_is_greedy(card: ModelCard) -> None:
    assert told(card, temperature=1e-9).temperature == 0.0


def test_a_default_length_is_cut_to_what_is_left(card: ModelCard) -> None:
    assert told(card, prompt_tokens=90).max_tokens == 10
    assert told(card, prompt_tokens=99).max_tokens == 1


@pytest.mark.parametrize(
    ("prompt", "asked", "fits"), [(99, 1, True), (98, 2, True), (99, 2, False), (100, 1, False)]
)
def test_what_does_not_fit_is_refused_never_cut(
    card: ModelCard,
    prompt: int,
    asked: int,
    fits: bool,  # noqa: FBT001
) -> None:
    if fits:
        assert told(card, prompt_tokens=prompt, max_new_tokens=asked).max_tokens == asked
        return
    with pytest.raises(Refusal) as refusal:
        told(card, prompt_tokens=prompt, max_new_tokens=asked)
    assert refusal.value.status == 400
    assert refusal.value.failure is not None
    assert refusal.value.failure.cause is Cause.REQUEST_TOO_LONG


def test_a_refusal_for_length_shows_both_numbers(card: ModelCard) -> None:
    with pytest.raises(Refusal, match=r"prompt has 150 tokens, the limit is 99"):
        told(card, prompt_tokens=150)
    with pytest.raises(Refusal, match=r"90 prompt tokens and 11 new .* 101, the limit is 100"):
        told(card, prompt_tokens=90, max_new_tokens=11)


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": -0.1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"top_k": -2},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"frequency_penalty": 3},
        {"presence_penalty": -3},
        {"max_new_tokens": 0},
        {"min_new_tokens": -1},
        {"max_new_tokens": 3, "min_new_tokens": 4},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [1] * 1000},
        {"stop_regex": "a"},
        {"regex": "a", "ebnf": "b"},
        {"json_object": True, "json_schema": "{}"},
        {"regex": "a" * (GRAMMAR_LIMIT + 1)},
        {"logit_bias": {"1": 101}},
        {"logit_bias": {"x": 5}},
        {"logit_bias": {"-1": 5}},
        {"logit_bias": {"9" * 5000: 5}},
        {"logit_bias": {"258": 5}},
        {"logit_bias": {str(n): 1 for n in range(BIASES_LIMIT + 1)}},
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_by_name(
    card: ModelCard, wish: dict[str, Any]
) -> None:
    with pytest.raises(Refusal) as refusal:
        told(card, **wish)
    assert refusal.value.status == 400
    ours = {"min_new_tokens": "min_", "max_new_tokens": "max_tokens"}
    last = list(wish)[-1]
    assert ours.get(last, last) in refusal.value.message


@pytest.mark.parametrize(
    ("wish", "grammar"),
    [
        ({"json_schema": '{"type": "object"}'}, (GrammarKind.JSON_SCHEMA, '{"type": "object"}')),
        ({"json_schema": {"type": "object"}}, (GrammarKind.JSON_SCHEMA, '{"type":"object"}')),
        ({"regex": "a+"}, (GrammarKind.REGEX, "a+")),
        ({"ebnf": "root ::= x"}, (GrammarKind.EBNF, "root ::= x")),
        ({"structural_tag": {"a": 1}}, (GrammarKind.STRUCTURAL_TAG, '{"a":1}')),
        ({"json_object": True}, (GrammarKind.JSON, "")),
    ],
)
def test_a_grammar_is_a_text_or_an_object(
    card: ModelCard, wish: dict[str, Any], grammar: tuple[GrammarKind, str]
) -> None:
    assert told(card, **wish).grammar == Grammar(*grammar)


def test_biases_are_of_token_ids(card: ModelCard) -> None:
    assert told(card, logit_bias={"7": -100, "97": 1.5}).logit_bias == ((7, -100.0), (97, 1.5))


def test_each_sample_has_the_seed_that_it_would_have_alone(card: ModelCard) -> None:
    def seed(sample: int, **wishes: Any) -> int:
        return sampling(
            Wishes(n=4, **wishes),
            LogprobWishes(),
            key=KEY,
            prompt_tokens=1,
            limit=9,
            default_max_tokens=1,
            card=card,
            sample=sample,
        ).seed

    assert [seed(n, seed=5) for n in range(4)] == [5, 6, 7, 8]
    assert [seed(n, seed=2**63 - 1) for n in range(2)] == [2**63 - 1, 0]
    assert [seed(n) for n in range(4)] == [KEY.room] * 4  # each sample has a room of its own


@pytest.mark.parametrize("n", [0, -1, 129])
def test_samples_are_one_to_openais_limit(n: int) -> None:
    assert (samples_of(Wishes()), samples_of(Wishes(n=128))) == (1, 128)
    with pytest.raises(Refusal, match=f"n: {n}; it is 1 to 128"):
        samples_of(Wishes(n=n))


def test_a_misspelt_wish_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="temprature"):
        msgspec.convert({"temprature": 1.0}, Wishes)


def test_stop_strings_are_one_or_a_list() -> None:
    assert stop_strings(Wishes(stop="a")) == ("a",)
    assert stop_strings(Wishes(stop=["b", "a"])) == ("b", "a")
    assert stop_strings(Wishes()) == ()


@pytest.mark.parametrize("stop", ["", ["a", ""], ["x"] * 100, "y" * 5000])
def test_stop_strings_have_limits(stop: str | list[str]) -> None:
    with pytest.raises(Refusal, match="stop"):
        stop_strings(Wishes(stop=stop))

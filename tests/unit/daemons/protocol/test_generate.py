"""A request once it is tokens."""

from __future__ import annotations

import msgspec
import pytest

from daemons.protocol.generate import (
    BIASES_LIMIT,
    GRAMMAR_LIMIT,
    TOP_LOGPROBS_LIMIT,
    Grammar,
    GrammarKind,
    Sampling,
    Submit,
    prompt_digest,
)


def test_a_text_ends_with_stop_tokens_and_the_models_own() -> None:
    sampling = Sampling(stop_token_ids=(5,), eos_token_ids=(1, 2))
    assert sampling.ending_token_ids == {1, 2, 5}


def test_ignore_eos_leaves_the_stop_tokens() -> None:
    sampling = Sampling(stop_token_ids=(5,), eos_token_ids=(1, 2), ignore_eos=True)
    assert sampling.ending_token_ids == {5}


def test_the_end_of_a_grammar_ends_the_text_whatever_is_ignored() -> None:
    grammar = Grammar(GrammarKind.JSON)
    sampling = Sampling(eos_token_ids=(1, 2), ignore_eos=True, grammar=grammar)
    assert sampling.ending_token_ids == {1, 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"frequency_penalty": 2.1},
        {"presence_penalty": -2.1},
        {"logprobs": TOP_LOGPROBS_LIMIT + 1},
        {"prompt_logprobs": -1},
        {"stop_token_ids": [2**31]},
        {"beams": 4},
        {"logprobs_of": "some"},
        {"logit_bias": [[2**31, 1.0]]},
        {"logit_bias": [[5, 100.5]]},
        {"logit_bias": [[5, 1.0]] * (BIASES_LIMIT + 1)},
        {"grammar": {"kind": "lark", "text": ""}},
        {"grammar": {"kind": "regex", "text": "a" * (GRAMMAR_LIMIT + 1)}},
    ],
)
def test_sampling_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Sampling)


def test_a_grammar_and_biases_come_as_json_values() -> None:
    told = {"grammar": {"kind": "regex", "text": "a+"}, "logit_bias": [[5, -100]]}
    asked = msgspec.convert(told, Sampling)
    assert asked == Sampling(grammar=Grammar(GrammarKind.REGEX, "a+"), logit_bias=((5, -100.0),))


@pytest.mark.parametrize(
    "wrong",
    [{"room": 0}, {"attempt": 0}, {"prompt": [-1]}, {"prefill": "P"}, {"timeout_s": 0.0}],
)
def test_a_submit_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    body = msgspec.to_builtins(Submit(1, 1, (1, 2), Sampling(), "p0", 5.0))
    assert msgspec.convert(body, Submit).prompt == (1, 2)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body | wrong, Submit)


def test_prompts_of_one_length_have_one_digest_only_if_they_are_equal() -> None:
    assert prompt_digest((1, 2, 3)) == prompt_digest([1, 2, 3])
    assert len({prompt_digest(p) for p in ((1, 2, 3), (1, 3, 2), (1, 2, 4), (1, 2), ())}) == 5
    assert len(prompt_digest((5,))) == 16

from __future__ import annotations

import math

import pytest
import torch

from daemons.engine.logprobs import token_logprobs

# Probabilities 0.5, 0.25, 0.125, 0.125.
LOGITS = torch.tensor([[3.0, 2.0, 1.0, 1.0], [1.0, 1.0, 2.0, 3.0]]) * math.log(2)


def test_each_token_has_its_own_log_probability() -> None:
    outs = token_logprobs(LOGITS, [0, 0], [0, 0])
    assert [out.logprob for out in outs] == pytest.approx([math.log(0.5), math.log(0.125)])
    assert [out.top for out in outs] == [(), ()]


def test_each_token_names_as_many_of_the_likeliest_as_it_asked_for() -> None:
    one, two = token_logprobs(LOGITS, [3, 3], [1, 2])
    assert [token for token, _ in one.top] == [0]
    assert [token for token, _ in two.top] == [3, 2]
    assert [logprob for _, logprob in two.top] == pytest.approx([math.log(0.5), math.log(0.25)])


def test_more_than_the_vocabulary_is_all_of_it() -> None:
    (out,) = token_logprobs(LOGITS[:1], [1], [100])
    assert len(out.top) == 4
    assert sum(math.exp(logprob) for _, logprob in out.top) == pytest.approx(1.0)


def test_no_tokens_have_no_log_probabilities() -> None:
    assert token_logprobs(LOGITS[:0], [], []) == []

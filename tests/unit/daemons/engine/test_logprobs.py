from __future__ import annotations

import math

import pytest
import torch

from daemons.engine.logprobs import drawn_logprob, likeliest, token_logprobs
from daemons.protocol.generate import TokenOut

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


def test_a_drawn_token_is_judged_among_those_that_it_was_drawn_from() -> None:
    logs = torch.tensor([0.25, 0.0, 0.75]).log()
    named = drawn_logprob(4, logs, torch.tensor([4, 6, 9]), 3)
    assert named.id == 4
    assert named.logprob == pytest.approx(math.log(0.25))
    assert [token for token, _ in named.top] == [9, 4]  # what could not be drawn is not named
    assert [value for _, value in named.top] == pytest.approx([math.log(0.75), math.log(0.25)])


def test_a_token_drawn_from_all_needs_no_ids() -> None:
    logs = torch.tensor([0.25, 0.75]).log()
    assert drawn_logprob(1, logs, None, 0) == TokenOut(1, float(logs[1]))
    assert drawn_logprob(0, logs, None, 1).top == ((1, float(logs[1])),)


@pytest.mark.parametrize("size", [65, 640, 1000])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_the_likeliest_of_many_blocks_are_those_of_a_stable_sort(size: int, count: int) -> None:
    draw = torch.Generator().manual_seed(size)
    scores = torch.randint(-9, 9, (20, size), generator=draw).float()  # many equals
    values, ids = likeliest(scores, count)
    wanted = scores.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, wanted[0][:, :count])
    assert torch.equal(ids, wanted[1][:, :count])


def test_the_lowest_ids_are_named_among_equals_and_none_that_cannot_be() -> None:
    logits = torch.tensor([[1.0, float("-inf"), 2.0, 2.0, 1.0]])
    (out,) = token_logprobs(logits, [4], [5])
    assert [token for token, _ in out.top] == [2, 3, 0, 4]
    assert token_logprobs(logits, [4], [1])[0].top == out.top[:1]

"""The sampler's definitions, each shown on a vocabulary small enough to count."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from daemons.engine import sampler as module
from daemons.engine.room import RoomState, begin_room
from daemons.engine.sampler import NO_TOKEN, NOT_FINITE, choose, is_plain, uniform
from daemons.engine.step import Sequence
from daemons.protocol.generate import Distribution, Sampling
from daemons.protocol.ids import RoomKey

DRAWS = 2000
# Probabilities 0.4, 0.3, 0.2, 0.1; two more at about 0.
PROBABILITIES = (0.1, 0.4, 0.2, 0.3)
LOGITS = torch.tensor([*(math.log(p) for p in PROBABILITIES), -40.0, -40.0])


def room(prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **asked: Any) -> RoomState:
    return begin_room(Sequence(RoomKey(1, 1), Sampling(**asked), prompt, output), len(LOGITS))


def choose_one(logits: torch.Tensor, state: RoomState) -> int:
    (choice,) = choose(logits.unsqueeze(0), [state])
    assert choice.error == ""
    return choice.token


def tokens(logits: torch.Tensor, states: list[RoomState]) -> list[int]:
    return [choice.token for choice in choose(logits.expand(len(states), -1), states)]


def shares(logits: torch.Tensor = LOGITS, **asked: Any) -> dict[int, float]:
    """Return how often each token is chosen, over many seeds."""
    counted = Counter(tokens(logits, [room(seed=seed, **asked) for seed in range(DRAWS)]))
    return {token: count / DRAWS for token, count in counted.items()}


def near(wanted: dict[int, float]) -> Any:
    return pytest.approx(wanted, abs=0.035)  # three standard deviations of DRAWS draws


def test_temperature_zero_takes_the_largest_and_the_first_among_equals() -> None:
    assert choose_one(LOGITS, room(temperature=0)) == 1
    assert choose_one(torch.tensor([1.0, 2.0, 2.0, 0.0, 0.0, 0.0]), room(temperature=0)) == 1


def test_a_draw_follows_the_probabilities() -> None:
    assert shares() == near({0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3})


def test_temperature_sharpens_and_flattens() -> None:
    squares = [p * p for p in PROBABILITIES]
    sharp = {token: square / sum(squares) for token, square in enumerate(squares)}
    assert shares(temperature=0.5) == near(sharp)
    roots = [math.sqrt(p) for p in PROBABILITIES]
    flat = {token: root / sum(roots) for token, root in enumerate(roots)}
    assert shares(temperature=2.0) == near(flat)


def test_a_temperature_near_zero_is_almost_greedy_and_finite() -> None:
    assert shares(temperature=1e-6) == {1: 1.0}


def test_top_k_leaves_the_k_likeliest() -> None:
    assert shares(top_k=2) == near({1: 4 / 7, 3: 3 / 7})
    assert shares(top_k=1) == {1: 1.0}
    assert shares(top_k=100) == near({0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3})


def test_top_p_leaves_the_fewest_that_reach_it_and_at_least_one() -> None:
    assert shares(top_p=0.69) == near({1: 4 / 7, 3: 3 / 7})
    assert shares(top_p=0.71) == near({1: 4 / 9, 3: 3 / 9, 2: 2 / 9})
    assert shares(top_p=0.0) == {1: 1.0}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # Of 0.4 and 0.3 the first alone is 0.571.
    assert shares(top_k=2, top_p=0.57) == {1: 1.0}
    assert shares(top_k=2, top_p=0.58) == near({1: 4 / 7, 3: 3 / 7})


def test_min_p_leaves_those_near_the_likeliest() -> None:
    assert shares(min_p=0.6) == near({1: 4 / 7, 3: 3 / 7})
    assert shares(min_p=1.0) == {1: 1.0}
    assert shares(top_k=4, min_p=0.6) == near({1: 4 / 7, 3: 3 / 7})
    assert set(shares(top_k=4, min_p=0.4)) == {1, 2, 3}


@pytest.mark.parametrize("size", [1000, 20000])
def test_top_p_looks_beyond_its_first_candidates_in_a_flat_vocabulary(size: int) -> None:
    logits = torch.linspace(0, -0.01, size)  # almost flat, the first is the likeliest
    asked = [Sequence(RoomKey(1, 1), Sampling(top_p=0.9, seed=seed), ()) for seed in range(300)]
    seen = set(tokens(logits, [begin_room(one, size) for one in asked]))
    assert 0.8 * size < max(seen) < 0.91 * size
    assert min(seen) < 0.1 * size


def test_a_repetition_penalty_lowers_what_was_said_or_asked() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0, -1.1, -9.0, -9.0])
    assert choose_one(logits, room(temperature=0)) == 0
    assert choose_one(logits, room(prompt=(0,), temperature=0, repetition_penalty=1.2)) == 1
    assert choose_one(logits, room(output=(0,), temperature=0, repetition_penalty=1.2)) == 1
    negative = logits - 10  # there a penalty multiplies
    assert choose_one(negative, room(prompt=(0,), temperature=0, repetition_penalty=1.2)) == 1


def test_a_frequency_penalty_counts_and_a_presence_penalty_does_not() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    once, twice = (0,), (0, 0)
    assert choose_one(logits, room(output=once, temperature=0, frequency_penalty=0.6)) == 0
    assert choose_one(logits, room(output=twice, temperature=0, frequency_penalty=0.6)) == 1
    assert choose_one(logits, room(output=twice, temperature=0, presence_penalty=0.6)) == 0
    assert choose_one(logits, room(output=once, temperature=0, presence_penalty=1.1)) == 1
    assert choose_one(logits, room(prompt=twice, temperature=0, frequency_penalty=2.0)) == 0


def test_min_tokens_holds_back_the_ends_of_a_text() -> None:
    early = room(temperature=0, min_tokens=1, eos_token_ids=(1,), stop_token_ids=(3,))
    assert choose_one(LOGITS, early) == 2
    early.add(2)
    assert choose_one(LOGITS, early) == 1
    ignoring = room(temperature=0, min_tokens=1, eos_token_ids=(1,), ignore_eos=True)
    assert choose_one(LOGITS, ignoring) == 1


def test_an_end_that_the_vocabulary_does_not_have_holds_nothing_back() -> None:
    assert choose_one(LOGITS, room(temperature=0, min_tokens=1, stop_token_ids=(99,))) == 1


def test_a_draw_depends_on_seed_and_index_and_not_on_the_batch() -> None:
    rooms = [room(seed=seed, output=(0,) * index) for seed in range(8) for index in range(8)]
    together = tokens(LOGITS, rooms)
    alone = [choose_one(LOGITS, state) for state in rooms]
    assert together == alone
    assert len(set(together)) > 1
    assert together == tokens(LOGITS, rooms)


def test_greedy_and_drawn_rooms_may_share_a_batch() -> None:
    rooms = [
        room(temperature=0),
        room(seed=5),
        room(temperature=0, output=(1,), presence_penalty=2),
    ]
    assert tokens(LOGITS, rooms) == [1, choose_one(LOGITS, rooms[1]), 3]
    assert [is_plain(state) for state in rooms] == [True, False, False]


def test_uniform_is_spread_evenly_over_seeds_and_indices() -> None:
    for numbers in (
        [uniform(seed, 0) for seed in range(DRAWS)],
        [uniform(0, index) for index in range(DRAWS)],
    ):
        assert all(0 <= number < 1 for number in numbers)
        tenths = Counter(int(number * 10) for number in numbers)
        assert all(abs(tenths[tenth] - DRAWS / 10) < 60 for tenth in range(10))
        assert len(set(numbers)) == DRAWS


def test_uniform_is_the_same_on_every_machine_and_takes_any_seed() -> None:
    assert uniform(7, 3) == 0.5648628684101831
    assert uniform(7, 3) != uniform(73, 0) != uniform(-7, 3)
    assert 0 <= uniform(2**80, 0) < 1


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf"), float("-inf")])
    assert set(shares(logits)) == {1, 3}


def test_a_bias_is_added_to_the_logits_whatever_the_temperature() -> None:
    assert choose_one(LOGITS, room(temperature=0, logit_bias=((4, 100.0),))) == 4
    assert choose_one(LOGITS, room(temperature=0, logit_bias=((1, -100.0), (3, -100.0)))) == 2
    doubled = shares(logit_bias=((0, math.log(2)),))
    assert doubled == near({0: 2 / 11, 1: 4 / 11, 2: 2 / 11, 3: 3 / 11})
    assert not is_plain(room(temperature=0, logit_bias=((1, 0.5),)))


def test_a_bias_outside_the_vocabulary_fails_its_room() -> None:
    assert room(logit_bias=((6, 1.0),)).fault == "logit_bias: a token id outside 0..5"
    assert room(logit_bias=((5, 1.0),)).fault == ""


def test_raw_logits_are_never_changed() -> None:
    logits = LOGITS.repeat(3, 1)
    asked = {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": ((1, 5.0),)}
    choose(logits, [room(prompt=(1,), output=(1,), top_k=top_k, **asked) for top_k in (-1, 2, 3)])
    assert torch.equal(logits, LOGITS.repeat(3, 1))


def test_logits_that_are_not_finite_fail_their_room_alone() -> None:
    logits = LOGITS.repeat(4, 1)
    logits[1, 2] = float("nan")
    logits[2] = float("-inf")
    logits[3, 0] = float("inf")
    for asked in ({"temperature": 0}, {}, {"top_k": 2}):
        errors = [choice.error for choice in choose(logits, [room(**asked) for _ in range(4)])]
        assert errors == ["", NOT_FINITE, NOT_FINITE, NOT_FINITE]


def test_a_room_that_may_choose_nothing_fails_alone() -> None:
    logits = torch.full((2, 6), float("-inf"))
    logits[:, 1] = 0.0
    forced = room(logit_bias=((1, -100.0),))
    assert forced.bias is not None
    forced.bias[1][0] = float("-inf")
    assert [choice.error for choice in choose(logits, [forced, room()])] == [NO_TOKEN, ""]


# --- against a definition in numpy ---------------------------------------------------------------

WORDS = 40
ROUGH = torch.randn(WORDS, generator=torch.Generator().manual_seed(1)) * 2
ROUGH[7] = ROUGH[3]  # equals, also near the top
ROUGH[30] = ROUGH[31] = ROUGH.sort(descending=True)[0][9]
SAID, ASKED = (3, 3, 9, 30), (5, 9)
MANY = 4000


def defined(sampling: Sampling) -> np.ndarray:
    """Return the probability of each word, by the module's text and nothing of its code."""
    scores = ROUGH.double().numpy().copy()
    for word in {*SAID, *ASKED}:
        p = sampling.repetition_penalty
        scores[word] = scores[word] / p if scores[word] > 0 else scores[word] * p
    for word, count in Counter(SAID).items():
        scores[word] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for word, bias in sampling.logit_bias:
        scores[word] += bias
    scores /= sampling.temperature
    order = sorted(range(WORDS), key=lambda word: (-scores[word], word))
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    weights = np.exp(scores[order] - scores.max())
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    kept = [
        place
        for place in range(len(order))
        if place == 0
        or (before[place] < sampling.top_p and weights[place] >= sampling.min_p * weights[0])
    ]
    found = np.zeros(WORDS)
    found[[order[place] for place in kept]] = weights[kept] / weights[kept].sum()
    return found


def said_room(sampling: Sampling) -> RoomState:
    return begin_room(Sequence(RoomKey(1, 1), sampling, ASKED, SAID), WORDS)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 10},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "all three": {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.03},
    "nucleus and min_p": {"top_p": 0.85, "min_p": 0.1},
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": -1.2},
    "bias": {"logit_bias": ((3, -2.0), (20, 3.0))},
    "everything": {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.4,
        "logit_bias": ((20, 1.5),),
    },
}


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_draws_are_of_the_defined_distribution_by_chi_square(asked: dict[str, Any]) -> None:
    wanted = defined(Sampling(**asked))
    rooms = [said_room(Sampling(seed=seed, **asked)) for seed in range(MANY)]
    found = np.bincount(tokens(ROUGH, rooms), minlength=WORDS)
    assert not found[wanted == 0].any()
    usual = wanted * MANY >= 5  # fewer are no normal variable: they are taken together
    expected = np.append(wanted[usual], wanted[~usual].sum()) * MANY
    counted = np.append(found[usual], found[~usual].sum())
    statistic = ((counted - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = len(expected) - 1
    # Wilson and Hilferty's cube: 4 standard deviations, one in thirty thousand.
    limit = freedom * (1 - 2 / (9 * freedom) + 4 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_log_probabilities_of_what_was_drawn_from_are_the_defined_ones(
    asked: dict[str, Any],
) -> None:
    sampling = Sampling(logprobs=1, logprobs_of=Distribution.SAMPLED, **asked)
    (choice,) = choose(ROUGH.unsqueeze(0), [said_room(sampling)])
    assert choice.logs is not None
    found = np.zeros(WORDS)
    ids = torch.arange(WORDS) if choice.ids is None else choice.ids
    found[ids.numpy()] = choice.logs.double().exp().numpy()
    assert found == pytest.approx(defined(sampling), abs=1e-6)


def test_a_draw_is_the_same_in_any_batch_whatever_the_others_want() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(60, 3001, generator=generator) * 3).bfloat16().float()  # many equals
    choices: list[dict[str, Any]] = [*CASES.values(), {"temperature": 0}, {"top_k": 2000}]
    states = [
        begin_room(
            Sequence(RoomKey(1, 1), Sampling(seed=n, **choices[n % len(choices)]), (5,)), 3001
        )
        for n in range(60)
    ]
    alone = [
        choose(row.unsqueeze(0), [state])[0].token
        for row, state in zip(logits, states, strict=True)
    ]
    for size in (7, 60):
        order = torch.randperm(60, generator=generator).tolist()
        for first in range(0, 60, size):
            some = order[first : first + size]
            batch = choose(logits[some], [states[n] for n in some])
            assert [choice.token for choice in batch] == [alone[n] for n in some]


@pytest.mark.parametrize("asked", [{}, {"top_p": 0.9}, {"min_p": 0.02}, {"temperature": 1.5}])
def test_few_candidates_and_the_whole_vocabulary_choose_the_same(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(3)).mul(2).bfloat16()
    rooms = [
        begin_room(Sequence(RoomKey(1, 1), Sampling(seed=seed, top_k=40, **asked), ()), 500)
        for seed in range(500)
    ]
    few = tokens(logits.float(), rooms)
    monkeypatch.setattr(module, "FEW", 0)
    assert tokens(logits.float(), rooms) == few
    assert len(set(few)) > 10


def test_top_k_takes_the_lowest_ids_among_equals_and_no_more_than_k() -> None:
    equal = torch.zeros(100)
    equal[[40, 60]] = 1.0
    rooms = [
        begin_room(Sequence(RoomKey(1, 1), Sampling(seed=seed, top_k=5), ()), 100)
        for seed in range(300)
    ]
    assert set(tokens(equal, rooms)) == {40, 60, 0, 1, 2}


def test_top_p_takes_the_lowest_ids_among_equals() -> None:
    rooms = [
        begin_room(Sequence(RoomKey(1, 1), Sampling(seed=seed, top_p=0.05), ()), 100)
        for seed in range(300)
    ]
    assert set(tokens(torch.zeros(100), rooms)) == {0, 1, 2, 3, 4}

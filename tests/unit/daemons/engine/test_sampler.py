"""The sampler's definitions, each shown on a vocabulary small enough to count."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from daemons.engine.room import RoomState, begin_room
from daemons.engine.sampler import choose, choose_one, is_plain, uniform
from daemons.engine.step import Sequence
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey

DRAWS = 2000
# Probabilities 0.4, 0.3, 0.2, 0.1; two more at about 0.
PROBABILITIES = (0.1, 0.4, 0.2, 0.3)
LOGITS = torch.tensor([*(math.log(p) for p in PROBABILITIES), -40.0, -40.0])


def room(prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **asked: Any) -> RoomState:
    return begin_room(Sequence(RoomKey(1, 1), Sampling(**asked), prompt, output), len(LOGITS))


def shares(logits: torch.Tensor = LOGITS, **asked: Any) -> dict[int, float]:
    """Return how often each token is chosen, over many seeds."""
    counted = Counter(choose_one(logits, room(seed=seed, **asked)) for seed in range(DRAWS))
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


@pytest.mark.parametrize("size", [1000, 20000])
def test_top_p_looks_beyond_its_first_candidates_in_a_flat_vocabulary(size: int) -> None:
    logits = torch.linspace(0, -0.01, size)  # almost flat, the first is the likeliest
    seen = set()
    for seed in range(300):
        asked = Sequence(RoomKey(1, 1), Sampling(top_p=0.9, seed=seed), ())
        seen.add(choose_one(logits, begin_room(asked, size)))
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
    together = choose(LOGITS.expand(len(rooms), -1), rooms)
    alone = [choose_one(LOGITS, state) for state in rooms]
    assert together == alone
    assert len(set(together)) > 1
    assert together == choose(LOGITS.expand(len(rooms), -1), rooms)


def test_greedy_and_drawn_rooms_may_share_a_batch() -> None:
    rooms = [
        room(temperature=0),
        room(seed=5),
        room(temperature=0, output=(1,), presence_penalty=2),
    ]
    chosen = choose(LOGITS.expand(3, -1), rooms)
    assert chosen == [1, choose_one(LOGITS, rooms[1]), 3]
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

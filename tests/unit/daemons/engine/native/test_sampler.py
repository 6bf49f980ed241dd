"""The kernels choose what torch chooses, and both what the definition says."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import daemons.engine.native.sampler as native_sampler
import daemons.engine.sampler as torch_sampler
import tests.support.sampling as definition
from daemons.engine.grammar import BadGrammar
from daemons.engine.native.sampler import NativeSampler
from daemons.engine.room import RoomState, begin_room
from daemons.engine.sampler import NO_TOKEN, NOT_FINITE, TorchSampler
from daemons.engine.step import Sequence
from daemons.protocol.generate import Distribution, Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.support.native import team
from tests.support.sampling import chosen, judged

NONE = float("-inf")
TORCH = TorchSampler()


@dataclass
class Grammar:
    """In place of a walk: allows the same tokens for ever, or breaks."""

    tokens: frozenset[int]
    why: str = ""

    def allow(self, bits: torch.Tensor, row: int) -> None:
        if self.why:
            raise BadGrammar(self.why)
        words = np.zeros(bits.shape[1] * 32, dtype=np.uint8)
        words[list(self.tokens)] = 1
        bits[row] = torch.from_numpy(np.packbits(words, bitorder="little").view(np.int32))

    def add(self, token: int) -> None: ...


@dataclass
class Case:
    """A room and its logits."""

    logits: list[float]
    asked: Sampling
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    allowed: frozenset[int] | None = None

    def room(self) -> RoomState:
        sequence = Sequence(RoomKey(1, 1), self.asked, self.prompt, self.output)
        state = begin_room(sequence, len(self.logits))
        assert not state.fault
        if self.allowed is not None:
            state.walk = Grammar(self.allowed)  # type: ignore[assignment]
        return state

    def defined(self) -> TokenOut | str:
        row = np.array(self.logits, dtype=np.float32)
        return chosen(row, self.asked, self.prompt, self.output, self.allowed)


def same(found: TokenOut | str, wanted: TokenOut | str) -> bool:
    if isinstance(found, str) or isinstance(wanted, str) or wanted.logprob is None:
        return found == wanted
    return (
        found.id == wanted.id
        and found.logprob == pytest.approx(wanted.logprob, abs=1e-9)
        and [token for token, _ in found.top] == [token for token, _ in wanted.top]
        and [log for _, log in found.top]
        == pytest.approx([log for _, log in wanted.top], abs=1e-9, rel=1e-9)
    )


def both(cases: Several[Case], members: int = 2) -> list[TokenOut | str]:
    """Return what the kernels choose for a batch; torch must choose the same."""
    logits = torch.tensor([case.logits for case in cases])
    before = logits.clone()
    rooms = [case.room() for case in cases]
    found = NativeSampler(team(members), logits.shape[1]).choose(logits, rooms)
    for own, other in zip(found, TORCH.choose(logits, rooms), strict=True):
        assert same(own, other), (own, other)
    assert torch.equal(logits.nan_to_num(7.5), before.nan_to_num(7.5))
    return found


# A coarse grid has many equals, and no sum that a limit meets by chance but where all are exact.
LEVELS = st.integers(-12, 12).map(lambda level: level / 4)
LOGITS = LEVELS | st.sampled_from([NONE, -0.0, 30.0])
BROKEN = LOGITS | st.sampled_from([float("nan"), float("inf"), 3e38, -3e38])


@st.composite
def a_case(draw: Any, size: int) -> Case:
    values = LOGITS if draw(st.integers(0, 9)) else BROKEN
    level = draw(values)
    some = draw(st.dictionaries(st.integers(0, size - 1), values, max_size=60))
    logits = [some.get(token, level if token % 3 else 0.25) for token in range(size)]
    token = st.integers(0, size - 1)
    penalties = st.sampled_from([0.0, 0.0, 0.3, -1.2, 2.0])
    biases = st.lists(st.tuples(token, st.sampled_from([0.5, -100.0, 100.0])), max_size=4)
    asked = Sampling(
        temperature=draw(st.sampled_from([0.0, 1e-320, 1e-6, 0.6, 1.0, 1.0, 1.7, 1e3])),
        top_k=draw(st.sampled_from([-1, -1, 1, 2, 5, 40, size, 5000])),
        top_p=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.03, 0.4, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.1, 0.5])),
        frequency_penalty=draw(penalties),
        presence_penalty=draw(penalties),
        seed=draw(st.integers(0, 2**40)),
        min_tokens=draw(st.sampled_from([0, 0, 100])),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, size + 3), max_size=3))),
        eos_token_ids=tuple(draw(st.lists(token, max_size=2))),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, None, 0, 3, 100])),
        logprobs_of=draw(st.sampled_from(list(Distribution))),
        logit_bias=tuple(draw(biases)),
    )
    said = st.lists(token, max_size=20).map(tuple)
    grammar = st.none() | st.frozensets(token, max_size=30)
    return Case(logits, asked, draw(said), draw(said), draw(grammar))


BATCHES = st.sampled_from([1, 2, 31, 64, 65, 150, 513]).flatmap(
    lambda size: st.lists(a_case(size), min_size=1, max_size=4)
)


@settings(max_examples=150, deadline=None)
@given(BATCHES)
@example([Case([NONE] * 70, Sampling(top_k=3))])
@example([Case([3e38, 0.0, 0.0, 0.25, 0.0], Sampling(logprobs=3))])
@example([Case([0.0] * 65, Sampling(top_p=0.5, seed=seed)) for seed in range(4)])
@example([Case([0.0, -0.0] * 40, Sampling(top_k=3, seed=seed)) for seed in range(4)])
def test_kernels_torch_and_the_definition_choose_the_same(cases: list[Case]) -> None:
    found = both(cases)
    for own, case in zip(found, cases, strict=True):
        assert same(own, case.defined()), (own, case.defined())


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cold": {"temperature": 0.05},
    "hot": {"temperature": 40.0},
    "top_k": {"top_k": 40},
    "more than blocks": {"top_k": 900},
    "many": {"top_k": 3000},
    "top_p": {"top_p": 0.9},
    "top_p of a flat one": {"temperature": 30.0, "top_p": 0.97},
    "top_p of top_k": {"top_k": 500, "top_p": 0.8},
    "min_p": {"min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    "raw": {"logprobs": 20, "top_k": 50},
    "drawn": {"logprobs": 20, "top_p": 0.7, "logprobs_of": Distribution.SAMPLED},
    "drawn from all": {"logprobs": 5, "logprobs_of": Distribution.SAMPLED},
}


def of_model_size(rows: int, vocabulary: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    return logits.bfloat16().float()  # many equals


def room_of(asked: dict[str, Any], seed: int, vocabulary: int) -> RoomState:
    sequence = Sequence(RoomKey(1, 1), Sampling(seed=seed, **asked), tuple(range(50)), (3, 3, 60))
    return begin_room(sequence, vocabulary)


@pytest.mark.parametrize("vocabulary", [32000, 50257])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_vocabularies_of_models_are_chosen_from_as_torch_does(
    way: dict[str, Any], vocabulary: int
) -> None:
    logits = of_model_size(4, vocabulary)
    rooms = [room_of(way, seed, vocabulary) for seed in range(4)]
    found = NativeSampler(team(2), vocabulary).choose(logits, rooms)
    for own, other in zip(found, TORCH.choose(logits, rooms), strict=True):
        assert same(own, other), (own, other)


@pytest.mark.parametrize("members", [1, 3])
def test_a_room_gets_the_same_in_any_batch_by_any_team(members: int) -> None:
    sampler = NativeSampler(team(members), 3001)
    ways = list(WAYS.values())
    logits = of_model_size(45, 3001)
    rooms = [room_of(ways[n % len(ways)], n, 3001) for n in range(45)]
    together = sampler.choose(logits, rooms)
    assert together == [sampler.choose(logits[n : n + 1], [rooms[n]])[0] for n in range(45)]
    order = list(reversed(range(45)))
    assert sampler.choose(logits[order], [rooms[n] for n in order]) == together[::-1]
    assert together == NativeSampler(team(2), 3001).choose(logits, rooms)


def test_a_fault_is_its_rooms_alone() -> None:
    broken = [0.0, float("nan"), 0.0]
    cases = [
        Case([0.0, 1.0, 0.0], Sampling(temperature=0.0)),
        Case(broken, Sampling()),
        Case([0.0, 1.0, 0.0], Sampling(), allowed=frozenset()),
        Case([0.0, float("inf"), 0.0], Sampling(temperature=0.0)),
    ]
    assert both(cases) == [TokenOut(1), NOT_FINITE, NO_TOKEN, NOT_FINITE]


def test_a_grammar_that_breaks_is_told_unless_the_logits_are_the_cause() -> None:
    rooms = [Case([0.0, 1.0], Sampling()).room() for _ in range(2)]
    for room in rooms:
        room.walk = Grammar(frozenset(), "no way on")  # type: ignore[assignment]
    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    for sampler in (NativeSampler(team(1), 2), TORCH):
        assert sampler.choose(logits, rooms) == ["no way on", NOT_FINITE]


@settings(max_examples=50, deadline=None)
@given(st.lists(LEVELS, min_size=1, max_size=200), st.data())
def test_given_tokens_are_judged_as_the_definition_says(row: list[float], data: Any) -> None:
    tokens = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, max_size=3))
    tops = [data.draw(st.sampled_from([0, 1, 5, 300])) for _ in tokens]
    logits = torch.tensor([row] * len(tokens))
    for sampler in (NativeSampler(team(2), len(row)), TORCH):
        found = sampler.judge(logits, tokens, tops)
        for own, token, top in zip(found, tokens, tops, strict=True):
            assert same(own, judged(np.array(row), token, top)), own


def drawn(monkeypatch: pytest.MonkeyPatch, share: float, case: Case) -> TokenOut | str:
    """Return what every way of choosing draws for a share that is given."""
    for module in (torch_sampler, native_sampler, definition):
        monkeypatch.setattr(module, "uniform", lambda seed, index: share)
    (found,) = both([case])
    assert same(found, case.defined()), (found, case.defined())
    return found


# Sums of equal weights are exact, so a share can lie on the very edge between two tokens.
@pytest.mark.parametrize("limits", [{}, {"top_k": 10**6}, {"top_p": 0.75}, {"top_k": 192}])
@pytest.mark.parametrize("size", [4, 64, 256, 1024])
def test_a_share_on_an_edge_is_the_next_tokens(
    monkeypatch: pytest.MonkeyPatch, size: int, limits: dict[str, Any]
) -> None:
    case = Case([0.5] * size, Sampling(**limits))
    left = size * 3 // 4 if "top_p" in limits else min(size, limits.get("top_k", size))
    for share in (0.0, 0.25, 0.5, 0.75):
        assert drawn(monkeypatch, share, case) == TokenOut(int(left * share))


@pytest.mark.parametrize("limits", [{}, {"top_k": 3}, {"top_p": 0.999}])
@pytest.mark.parametrize("size", [3, 200])
def test_a_share_of_0_skips_what_weighs_nothing(
    monkeypatch: pytest.MonkeyPatch, size: int, limits: dict[str, Any]
) -> None:
    case = Case([NONE] * (size - 1) + [0.0], Sampling(**limits))
    assert drawn(monkeypatch, 0.0, case) == TokenOut(size - 1)


@pytest.mark.parametrize("top_k", [-1, 256])
@pytest.mark.parametrize("size", [8, 128, 256, 2048])
@pytest.mark.parametrize(("top_p", "eighths"), [(0.0, 0), (0.125, 1), (0.5, 4), (0.875, 7)])
def test_a_nucleus_that_is_reached_exactly_has_no_more(
    monkeypatch: pytest.MonkeyPatch, size: int, top_k: int, top_p: float, eighths: int
) -> None:
    asked = Sampling(top_p=top_p, top_k=top_k)
    left = size if top_k < 0 else min(size, top_k)
    kept = max(1, left * eighths // 8)
    assert drawn(monkeypatch, 1 - 2.0**-20, Case([0.5] * size, asked)) == TokenOut(kept - 1)


@pytest.mark.parametrize("limits", [{}, {"top_k": 130}, {"top_p": 0.999999}])
def test_min_p_keeps_what_is_just_as_likely(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    logits = [1.0, 0.5] * 64 + [1.0]
    asked = Sampling(min_p=1.0, logprobs=200, logprobs_of=Distribution.SAMPLED, **limits)
    found = drawn(monkeypatch, 1 - 2.0**-20, Case(logits, asked))
    assert isinstance(found, TokenOut)
    assert found.id == 128
    assert [token for token, _ in found.top] == list(range(0, 129, 2))


def test_a_token_as_likely_as_min_p_to_the_last_bit_is_drawn_or_not_but_never_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_sampler, "uniform", lambda seed, index: 0.9)
    sampler = NativeSampler(team(1), 128)
    for score in np.arange(1, 400) / -64:
        logits = torch.tensor([[0.0] + [-1000.0] * 63 + [float(score)] * 64])
        weight = float(np.exp(score))
        for min_p in (np.nextafter(weight, 0), weight, np.nextafter(weight, 1)):
            asked = Sampling(min_p=float(min_p), logprobs=100, logprobs_of=Distribution.SAMPLED)
            (found,) = sampler.choose(logits, [Case([0.0] * 128, asked).room()])
            assert isinstance(found, TokenOut)
            assert found.id == 0 if len(found.top) == 1 else found.id >= 64


@pytest.mark.parametrize("limits", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}])
@pytest.mark.parametrize("size", [3, 200])
def test_scores_that_a_penalty_made_no_numbers_are_a_fault(
    size: int, limits: dict[str, Any]
) -> None:
    asked = Sampling(repetition_penalty=1e-46, **limits)  # 0 in fp32, and 0 times -inf is none
    case = Case([NONE] + [-1.0] * (size - 1), asked, prompt=(0,))
    assert both([case]) == [NOT_FINITE]
    assert case.defined() == NOT_FINITE


def test_nothing_to_judge_is_nothing() -> None:
    assert NativeSampler(team(1), 5).judge(torch.zeros(0, 5), [], []) == []

from __future__ import annotations

from concurrent.futures import Future

import pytest

from daemons.engine.grammar import Walk
from daemons.engine.room import RoomState, begin_room, judged_positions, resolved
from daemons.engine.step import NEWEST, Item, Sequence
from daemons.protocol.generate import Grammar, GrammarKind, Sampling
from daemons.protocol.ids import RoomKey

KEY = RoomKey(1, 1)
PROMPT = (4, 5, 5, 6)


def room(sampling: Sampling, output: tuple[int, ...] = ()) -> RoomState:
    return begin_room(Sequence(KEY, sampling, PROMPT, output), 10)


def item(start: int, tokens: int) -> Item:
    return Item(KEY, (1,) * tokens, start, (0,), samples=False)


def said(state: RoomState) -> dict[int, int]:
    assert state.said is not None
    return dict(zip(state.said.tokens, state.said.counts, strict=True))


def test_nothing_is_counted_for_a_room_without_penalties() -> None:
    assert room(Sampling()).said is None


def test_a_repetition_penalty_is_about_prompt_and_output() -> None:
    state = room(Sampling(repetition_penalty=1.5), output=(7,))
    state.add(8)
    state.add(5)
    assert said(state) == {4: 0, 5: 1, 6: 0, 7: 1, 8: 1}
    assert state.output == [7, 8, 5]


def test_frequency_and_presence_are_about_the_output_alone() -> None:
    for asked in (Sampling(frequency_penalty=0.1), Sampling(presence_penalty=0.1)):
        state = room(asked, output=(7,))
        state.add(7)
        assert said(state) == {7: 2}


@pytest.mark.parametrize(("prompt", "output"), [((10,), ()), ((-1,), ()), ((1,), (10,))])
def test_a_token_outside_the_vocabulary_is_the_rooms_fault(
    prompt: tuple[int, ...], output: tuple[int, ...]
) -> None:
    asked = Sampling(repetition_penalty=1.5, frequency_penalty=0.1)
    state = begin_room(Sequence(KEY, asked, prompt, output), 10)
    assert state.fault == "a token id outside 0..9"


def test_a_room_that_can_run_has_no_fault() -> None:
    assert room(Sampling()).fault == ""


def test_judged_are_the_prompt_positions_of_an_item_from_the_wanted_start_on() -> None:
    state = room(Sampling(prompt_logprobs=0, prompt_logprobs_start=1))
    assert judged_positions(state, item(0, 4)) == range(1, 4)
    assert judged_positions(state, item(2, 1)) == range(2, 3)
    assert judged_positions(state, item(3, 5)) == range(3, 4)
    assert not judged_positions(state, item(4, 1))


def test_nothing_is_judged_when_nobody_asked() -> None:
    assert not judged_positions(room(Sampling()), item(0, 4))


def test_biases_are_kept_and_a_token_named_twice_has_its_last_one() -> None:
    state = room(Sampling(logit_bias=((3, 1.0), (5, -2.0), (3, 4.0))))
    assert state.bias is not None
    assert [list(part) for part in state.bias] == [[3, 5], [4.0, -2.0]]
    assert room(Sampling()).bias is None


def test_a_bias_outside_the_vocabulary_is_a_fault() -> None:
    assert "logit_bias" in room(Sampling(logit_bias=((10**6, 1.0),))).fault


def test_a_grammar_is_walked_with_each_token() -> None:
    class Grammars:
        def walk(self, grammar: Grammar, sampling: Sampling, said: tuple[int, ...]) -> Walk:
            return Walk(Future(), sampling.eos_token_ids, (), list(said), 0.0)

    asked = Sampling(grammar=Grammar(GrammarKind.JSON), eos_token_ids=(2,))
    sequence = Sequence(KEY, asked, (1,), (7,))
    state = begin_room(sequence, 10, Grammars())  # type: ignore[arg-type]
    state.add(8)
    assert state.walk is not None
    assert state.walk.said == [7, 8]
    assert begin_room(Sequence(KEY, Sampling(), (1,)), 10).walk is None


def ahead(start: int) -> Item:
    return Item(KEY, (NEWEST,), start, (0, 1), samples=True, window=(5,), window_first=1)


def test_the_newest_token_is_the_one_that_was_chosen_last() -> None:
    state = room(Sampling(), output=(7,))
    found = Item(KEY, (7,), 4, (0, 1), samples=True, window=(5,), window_first=1)
    assert resolved(state, ahead(4)) == (found, "")
    state.add(8)
    assert resolved(state, ahead(5))[0].tokens == (8,)
    assert resolved(state, item(0, 2)) == (item(0, 2), "")


@pytest.mark.parametrize("start", [3, 5, 6])
def test_an_older_or_a_later_token_is_never_taken_for_the_newest(start: int) -> None:
    assert "no token was chosen" in resolved(room(Sampling(), output=(7,)), ahead(start))[1]


def test_a_room_without_a_token_has_no_newest_one() -> None:
    assert "no token was chosen" in resolved(room(Sampling()), ahead(3))[1]


def test_nothing_follows_the_token_that_ends_a_text() -> None:
    ends = Sampling(eos_token_ids=(7,))
    assert resolved(room(ends, output=(7,)), ahead(4))[1] == "its text has ended"
    ignored = Sampling(eos_token_ids=(7,), ignore_eos=True)
    assert resolved(room(ignored, output=(7,)), ahead(4))[1] == ""

"""Text that grows with its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from daemons.front.text import HELD_TOKENS_LIMIT, REPLACEMENT, Detokenizer, StopStrings
from tests.support.tiny_model import BOS, EOS, byte_tokenizer, space_tokenizer

SMOLLM2 = Path.home() / ".cache" / "pd" / "models" / "smollm2-135m-instruct"
BYTES = byte_tokenizer()
SPACES = space_tokenizer()


def pieces(tokenizer: Tokenizer, tokens: list[int], prompt: tuple[int, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.step(token) for token in tokens), detokenizer.flush()]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_pieces_of_a_byte_level_text_join_to_the_text(text: str) -> None:
    assert "".join(pieces(BYTES, list(text.encode()))) == text


@given(st.text(alphabet="the cats 中文é sat", max_size=40))
@settings(max_examples=200, deadline=None)
def test_pieces_of_a_sentencepiece_text_join_to_what_the_whole_decodes_to(text: str) -> None:
    tokens = ids(SPACES, text)
    assert "".join(pieces(SPACES, tokens)) == SPACES.decode(tokens)


@given(st.lists(st.integers(0, 255), max_size=60))
@settings(max_examples=200, deadline=None)
def test_whatever_bytes_come_no_piece_but_the_last_ends_inside_a_character(raw: list[int]) -> None:
    detokenizer = Detokenizer(BYTES, ())
    held = 0
    for token in raw:
        piece = detokenizer.step(token)
        held = 0 if piece else held + 1
        assert held < HELD_TOKENS_LIMIT
        assert not piece.endswith(REPLACEMENT) or held == 0


@given(st.lists(st.integers(0, 255), max_size=25))
@settings(max_examples=200, deadline=None)
def test_broken_bytes_decode_as_they_do_at_once(raw: list[int]) -> None:
    assert "".join(pieces(BYTES, raw)) == bytes(raw).decode(errors="replace")


def test_a_character_of_three_tokens_comes_with_its_last_token() -> None:
    assert pieces(BYTES, list("a中b".encode())) == ["a", "", "", "中", "b", ""]


def test_a_character_of_byte_fallback_tokens_comes_whole() -> None:
    tokens = ids(SPACES, "文")
    assert len(tokens) >= 3
    assert [piece for piece in pieces(SPACES, tokens) if piece.strip()] == ["文"]


def test_an_incomplete_character_at_the_end_is_shown_as_such() -> None:
    assert pieces(BYTES, list("é".encode())[:1]) == ["", REPLACEMENT]


def test_a_word_after_the_prompt_keeps_its_space() -> None:
    prompt = tuple(ids(SPACES, "the"))
    tokens = ids(SPACES, "cat sat")
    assert "".join(pieces(SPACES, tokens, prompt)) == " cat sat"


def test_a_prompt_that_ends_inside_a_character_does_not_spoil_the_output() -> None:
    assert "".join(pieces(BYTES, list(b"ok"), tuple("x中".encode()[:-1]))) == "ok"


def test_special_tokens_are_silent_and_cost_the_next_word_nothing() -> None:
    the, cat = ids(SPACES, "the cat")
    end = SPACES.token_to_id("</s>")
    assert "".join(pieces(SPACES, [the, *[end] * 3, cat])) == "the cat"
    assert "".join(pieces(BYTES, [BOS, *b"hi", EOS])) == "hi"


def test_special_tokens_are_shown_when_asked_for() -> None:
    detokenizer = Detokenizer(BYTES, (), skip_special_tokens=False)
    assert detokenizer.step(EOS) == "</s>"


def test_an_endless_run_of_silent_tokens_takes_no_memory() -> None:
    detokenizer = Detokenizer(BYTES, ())
    for _ in range(1000):
        assert detokenizer.step(EOS) == ""
    assert len(detokenizer._ids) < 50
    assert detokenizer.step(ord("x")) == "x"


def cut(stops: StopStrings, text: list[str]) -> tuple[str, str | None]:
    out = ""
    for n, piece in enumerate(text, 1):
        more, matched = stops.feed(piece, n)
        out += more
        if matched is not None:
            return out, matched
    return out + stops.flush(), None


def test_a_stop_string_over_several_pieces_cuts_the_text_before_it() -> None:
    assert cut(StopStrings(("END",)), ["one E", "N", "D two"]) == ("one ", "END")


def test_nothing_of_a_stop_string_goes_out_before_it_is_known_not_to_be_one() -> None:
    stops = StopStrings(("\n\nQ",))
    assert stops.feed("a\n", 1) == ("a", None)
    assert stops.feed("\n", 2) == ("", None)
    assert stops.feed("b", 3) == ("\n\nb", None)


def test_what_was_held_comes_out_when_the_text_ends() -> None:
    assert cut(StopStrings(("END",)), ["an EN"]) == ("an EN", None)


def test_the_earliest_stop_string_wins_then_the_first_named() -> None:
    assert cut(StopStrings(("yy", "xx")), ["a xx yy"]) == ("a ", "xx")
    assert cut(StopStrings(("ab", "abc")), ["zabc"]) == ("z", "ab")
    assert cut(StopStrings(("abc", "ab")), ["zabc"]) == ("z", "abc")


def test_a_stop_string_may_stay_in_the_text() -> None:
    assert cut(StopStrings(("END",), keep=True), ["x E", "ND y"]) == ("x END", "END")


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    stops = StopStrings(("x",), min_tokens=3)
    assert cut(stops, ["x", "a", "bx", "c"]) == ("xab", "x")


def test_a_stop_string_that_is_complete_at_min_tokens_counts_although_it_began_before() -> None:
    assert cut(StopStrings(("xyz",), min_tokens=3), ["ax", "y", "z"]) == ("a", "xyz")


@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_without_a_match_the_text_is_whole(stops: tuple[str, ...]) -> None:
    assert cut(StopStrings(stops), ["a", "zb", "z", "c"]) == ("azbzc", None)


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4)))
@settings(max_examples=300, deadline=None)
def test_cutting_piece_by_piece_equals_cutting_at_once(text: str, stops: list[str]) -> None:
    out, matched = cut(StopStrings(tuple(stops)), list(text))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (out, matched) == (text, None)
        return
    seen = text[: min(ends)]  # what had come when the first stop string was complete
    whole, first = cut(StopStrings(tuple(stops)), [seen])
    assert (out, matched) == (whole, first)


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"NOT CHECKED: no embedded model at {SMOLLM2}")
@pytest.mark.parametrize(
    "text", ["Hello, world! 1 2  3\n\n", "Größe 中文字 👩‍👩‍👧 é", "def f(x):\n    return x ** 2\n"]
)
def test_pieces_of_the_embedded_models_tokens_join_to_the_text(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(SMOLLM2 / "tokenizer.json"))
    assert "".join(pieces(tokenizer, ids(tokenizer, text))) == text

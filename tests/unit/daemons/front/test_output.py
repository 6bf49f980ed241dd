"""From a rank's outputs to pieces of text."""

from __future__ import annotations

from typing import Any

from daemons.front.output import End, Order, Piece, Track
from daemons.protocol.generate import FinishReason, Output, Sampling, TokenOut
from daemons.protocol.ids import RoomKey
from tests.support.tiny_model import EOS, byte_tokenizer

BYTES = byte_tokenizer()
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def order(**more: Any) -> Order:
    sampling = more.pop("sampling", Sampling())
    return Order(RoomKey(7, 1), tuple(b"hi"), sampling, "p0", "rid", **more)


def output(raw: bytes = b"", finish: FinishReason | None = None, **more: Any) -> Output:
    tokens = (*(TokenOut(byte) for byte in raw), *(TokenOut(id_) for id_ in more.pop("also", ())))
    return Output(7, 1, tokens, finish, **more)


def test_what_a_rank_is_told_is_what_was_ordered() -> None:
    submit = order().submit(3.0)
    assert (submit.room, submit.attempt, submit.prompt) == (7, 1, (104, 105))
    assert (submit.prefill, submit.timeout_s, submit.rid) == ("p0", 3.0, "rid")


def test_tokens_become_text_until_the_rank_says_why_it_ended() -> None:
    track = Track(order(), BYTES)
    assert not track.begun
    assert track.feed(output(b"ab")) == Piece("ab", (TokenOut(97), TokenOut(98)))
    assert track.begun
    assert track.feed(output(b"c", LENGTH)).end == End(LENGTH)


def test_the_token_that_ends_a_text_is_counted_but_not_shown() -> None:
    piece = Track(order(), BYTES).feed(output(b"ab", STOP, finish_token=98))
    assert piece.text == "a"
    assert len(piece.tokens) == 2
    assert piece.end == End(STOP, 98)


def test_the_token_that_ends_a_text_may_be_kept() -> None:
    track = Track(order(keep_stop=True), BYTES)
    assert track.feed(output(b"ab", STOP, finish_token=98)).text == "ab"


def test_end_of_sequence_as_the_first_token_is_an_empty_text() -> None:
    piece = Track(order(), BYTES).feed(output(b"", STOP, also=(EOS,), finish_token=EOS))
    assert (piece.text, len(piece.tokens), piece.end) == ("", 1, End(STOP, EOS))


def test_an_end_may_come_without_tokens_and_brings_out_what_was_held() -> None:
    track = Track(order(stops=("bcd",)), BYTES)
    assert track.feed(output(b"ab")).text == "a"
    assert track.feed(output(b"", LENGTH)) == Piece("b", (), End(LENGTH))


def test_an_incomplete_character_comes_out_at_the_end() -> None:
    track = Track(order(), BYTES)
    assert track.feed(output("é".encode()[:1])).text == ""
    assert track.feed(output(b"", LENGTH)).text == "\ufffd"


def test_a_stop_string_ends_the_text_and_drops_the_tokens_after_it() -> None:
    track = Track(order(stops=("cd",)), BYTES)
    assert track.feed(output(b"abc")).text == "ab"
    piece = track.feed(output(b"def", LENGTH))
    assert piece == Piece("", (TokenOut(ord("d")),), End(STOP, "cd"))


def test_a_stop_string_wins_over_the_length_that_ends_with_it() -> None:
    track = Track(order(stops=("b",)), BYTES)
    assert track.feed(output(b"ab", LENGTH)).end == End(STOP, "b")


def test_a_stop_string_waits_for_min_tokens() -> None:
    track = Track(order(stops=("a",), sampling=Sampling(min_tokens=3)), BYTES)
    assert track.feed(output(b"aaaa")).end == End(STOP, "a")
    assert track._tokens == 3


def test_counts_and_prompt_log_probabilities_pass_through() -> None:
    prompt = (TokenOut(104), TokenOut(105, -0.5))
    piece = Track(order(), BYTES).feed(output(b"a", cached_tokens=3, prompt_logprobs=prompt))
    assert (piece.cached_tokens, piece.prompt_logprobs) == (3, prompt)


def handing_over(*stops: str, max_tokens: int = 9) -> Track:
    sampling = Sampling(max_tokens=max_tokens)
    return Track(order(sampling=sampling, stops=stops, hands_over=True), BYTES)


def test_what_prefill_holds_back_at_its_end_is_decodes_to_tell() -> None:
    track = handing_over("bc")
    assert track.feed(output(b"b")) == Piece("", (TokenOut(98),))
    assert track.feed(output(b"", LENGTH)) == Piece("", (), End(LENGTH))


def test_a_text_of_one_token_is_whole_on_both_legs() -> None:
    track = handing_over("bc", max_tokens=1)
    assert track.feed(output(b"b", LENGTH)) == Piece("b", (TokenOut(98),), End(LENGTH))


def test_a_text_that_ends_with_its_first_token_ends_when_it_is_handed_over() -> None:
    track = handing_over("b")
    assert track.feed(output(b"b")) == Piece("", ())
    assert track.end is None
    assert track.feed(output(b"", LENGTH)) == Piece("", (TokenOut(98),), End(STOP, "b"))


def test_of_a_prompt_only_nothing_is_told_but_its_end() -> None:
    one = order(sampling=Sampling(max_tokens=1), prompt_only=True)
    piece = Track(one, BYTES).feed(output(b"b", LENGTH, prompt_logprobs=(TokenOut(1),)))
    assert piece == Piece("", (), End(LENGTH), prompt_logprobs=(TokenOut(1),))

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.lb.seam import Seam, SeamBroken

DONE = b"data: [DONE]"
Events = list[bytes]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode()


def generate(texts: list[str], index: int, *, end: bool, clock: Iterator[int]) -> Events:
    """Return /generate's events: each has all of the text so far."""
    out = []
    for n in range(1, len(texts) + 1):
        finish = {"type": "length"} if end and n == len(texts) else None
        meta = {"finish_reason": finish, "completion_tokens": n, "e2e_latency": next(clock)}
        text = "".join(texts[:n])
        out.append(event({"index": index, "text": text, "output_ids": [7] * n, "meta_info": meta}))
    return out


def chat(texts: list[str], index: int, *, end: bool, clock: Iterator[int]) -> Events:
    """Return chat's events: the first has the role too, others are left out when they are empty."""
    out = []
    for n, text in enumerate(texts, 1):
        finish = "length" if end and n == len(texts) else None
        first = {"role": "assistant", "content": text}
        delta = first if n == 1 else {"content": text} if text else {}
        if delta or finish:
            choice = {"index": index, "delta": delta, "finish_reason": finish}
            out.append(event({"id": "chatcmpl-r", "created": next(clock), "choices": [choice]}))
    return out


Make = Callable[..., Events]
makes = st.sampled_from([generate, chat])
# "" is a token whose character is incomplete, or that may begin a stop string
texts = st.lists(st.sampled_from(["a", "", "ß", " b"]), min_size=1, max_size=5)


def steady(events: Events) -> list[Any]:
    """Return what events say but for the times in them."""
    said = []
    for one in events:
        value = json.loads(one[6:]) if one != DONE else "DONE"
        if isinstance(value, dict):
            value.pop("created", None)
            value.get("meta_info", {}).pop("e2e_latency", None)
        said.append(value)
    return said


def by_choice(events: Events) -> dict[Any, list[Any]]:
    """Return what each choice's reader has, in order; None: what belongs to none."""
    told: dict[Any, list[Any]] = {}
    for one in steady(events):
        choices = one.get("choices") if isinstance(one, dict) else None
        index = one.get("index") if isinstance(one, dict) else None
        told.setdefault(choices[0]["index"] if choices else index, []).append(one)
    return told


@settings(max_examples=300, deadline=None)
@given(data=st.data(), make=makes, choices=st.lists(texts, min_size=1, max_size=3))
def test_the_joined_stream_says_what_decodes_alone_says(
    data: st.DataObject, make: Make, choices: list[list[str]]
) -> None:
    clock = itertools.count()
    streams = [make(one, n, end=True, clock=clock) for n, one in enumerate(choices)]
    decode = [e for row in itertools.zip_longest(*streams) for e in row if e is not None]
    decode += [event({"choices": [], "usage": {}}), DONE]
    firsts = [make(one[:1], n, end=len(one) == 1, clock=clock) for n, one in enumerate(choices)]
    late = [make(["x"], n, end=True, clock=clock)[-1:] for n in range(len(choices))]
    ends = [*itertools.chain(*late), event({"choices": [], "usage": {}}), DONE]
    prefill = [*itertools.chain(*firsts), *ends]
    seam, out = Seam(len(choices)), list[bytes]()
    sides = {True: list(prefill), False: list(decode)}
    while sides[False]:  # in any order, as two connections bring them
        is_prefill = bool(sides[True]) and data.draw(st.booleans())
        one = sides[is_prefill].pop(0)
        passed = seam.from_prefill(one) if is_prefill else seam.from_decode(one)
        if passed is not None:
            out.append(passed)
    assert by_choice(out) == by_choice(decode)
    assert out[-1] == DONE
    assert seam.is_over
    assert [seam.from_prefill(one) for one in sides[True]] == [None] * len(sides[True])


def test_prefills_first_token_goes_out_at_once_and_decode_does_not_repeat_it() -> None:
    clock, seam = itertools.count(), Seam(1)
    first, second = generate(["a", "b"], 0, end=False, clock=clock)
    (again,) = generate(["a"], 0, end=False, clock=clock)
    assert seam.from_prefill(first) == first
    assert not seam.is_over
    assert seam.from_decode(again) is None
    assert seam.from_decode(second) == second
    assert seam.is_over


@pytest.mark.parametrize("make", [generate, chat])
def test_another_first_token_breaks_the_seam(make: Make) -> None:
    clock, seam = itertools.count(), Seam(1)
    (one,) = make(["a"], 0, end=False, clock=clock)
    (other,) = make(["b"], 0, end=False, clock=clock)
    assert seam.from_prefill(one) == one
    with pytest.raises(SeamBroken, match="prefill said"):
        seam.from_decode(other)


@pytest.mark.parametrize("make", [generate, chat])
def test_a_text_that_ends_where_prefill_saw_no_end_breaks_the_seam(make: Make) -> None:
    clock, seam = itertools.count(), Seam(1)
    (one,) = make(["a"], 0, end=False, clock=clock)
    (end,) = make(["a"], 0, end=True, clock=clock)
    seam.from_prefill(one)
    with pytest.raises(SeamBroken, match="and ends"):
        seam.from_decode(end)


def test_how_a_text_ends_is_decodes_to_say() -> None:
    clock, seam = itertools.count(), Seam(1)
    (end,) = generate(["a"], 0, end=True, clock=clock)
    assert seam.from_prefill(end) is None
    assert seam.from_decode(end) == end


@pytest.mark.parametrize("odd", [b": comment", b"data: [1]", b"data: {", b'data: {"x": 1}', DONE])
def test_what_is_about_no_choice_is_decodes_alone(odd: bytes) -> None:
    seam = Seam(1)
    assert seam.from_prefill(odd) is None
    assert seam.from_decode(odd) == odd

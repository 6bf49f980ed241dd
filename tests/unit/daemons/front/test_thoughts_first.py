"""Thoughts before an answer that has a grammar."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.front.reasoning import Place
from daemons.front.thoughts_first import thoughts_first
from daemons.protocol.api.sampling_params import Wishes
from daemons.runtime.http import Refusal

TAGS = {"type": "tags_with_separator", "tags": []}


def elements(place: Place = Place.INSIDE, **wishes: Any) -> list[dict[str, Any]]:
    told = thoughts_first(Wishes(**wishes), place)
    assert (told.json_schema, told.regex, told.ebnf, told.json_object) == (None,) * 4
    assert isinstance(told.structural_tag, dict)
    form = told.structural_tag["format"]
    assert form["type"] == "sequence"
    return list(form["elements"])


@pytest.mark.parametrize(
    ("wishes", "answer"),
    [
        ({"json_object": True}, {"type": "json_schema", "json_schema": {"type": "object"}}),
        ({"json_schema": {"a": 1}}, {"type": "json_schema", "json_schema": {"a": 1}}),
        ({"json_schema": "true"}, {"type": "json_schema", "json_schema": True}),
        ({"regex": "a+"}, {"type": "regex", "pattern": "a+"}),
        ({"ebnf": "root ::= x"}, {"type": "grammar", "grammar": "root ::= x"}),
        ({"structural_tag": {"type": "structural_tag", "format": TAGS}}, TAGS),
    ],
)
def test_any_grammar_holds_for_what_follows_the_thoughts(
    wishes: dict[str, Any], answer: dict[str, Any]
) -> None:
    thoughts, then = elements(**wishes)
    assert (thoughts["begin"], thoughts["end"]) == ("", "</think>\n\n")
    assert then == answer


def test_a_model_that_opens_its_thoughts_itself_may_do_without() -> None:
    thoughts, _ = elements(Place.BEFORE, regex="a")
    assert thoughts["type"] == "optional"
    assert thoughts["content"]["begin"] == "<think>\n"


@pytest.mark.parametrize(
    "wishes",
    [
        Wishes(),
        Wishes(json_schema="{"),
        Wishes(structural_tag={"structures": []}),
        Wishes(structural_tag={"format": {"type": "triggered_tags"}}),
    ],
)
def test_what_is_free_or_cannot_be_read_stays_as_it_is(wishes: Wishes) -> None:
    assert thoughts_first(wishes, Place.INSIDE) is wishes


def test_two_grammars_are_refused() -> None:
    with pytest.raises(Refusal, match="one of them"):
        thoughts_first(Wishes(regex="a", ebnf="b"), Place.INSIDE)

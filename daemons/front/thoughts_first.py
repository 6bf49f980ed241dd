"""A grammar for the answer leaves the thoughts before it free.

Where thoughts are told apart, what a client asks of the text it asks of the answer: a structural
tag lets thoughts come first, which a template may itself have opened.
Source: what SGLang does with a reasoning parser, there in the sampler.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.front.reasoning import CLOSE, OPEN, Place
from daemons.front.sampling import grammar_of
from daemons.protocol.api.sampling_params import Wishes
from daemons.protocol.generate import Grammar, GrammarKind

NO_GRAMMAR: dict[str, Any] = {
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "json_object": None,
}


def thoughts_first(wishes: Wishes, place: Place) -> Wishes:
    """Return wishes whose grammar, if there is one, holds for what follows the thoughts.

    Raises:
        Refusal: there are two grammars.
    """
    grammar = grammar_of(wishes)
    answer = None if grammar is None else _answer(grammar)
    if answer is None:
        return wishes
    thoughts = {"type": "any_text"}
    begin = "" if place is Place.INSIDE else f"{OPEN}\n"
    tag = {"type": "tag", "begin": begin, "content": thoughts, "end": f"{CLOSE}\n\n"}
    if place is not Place.INSIDE:  # the model may do without
        tag = {"type": "optional", "content": tag}
    form = {"type": "sequence", "elements": [tag, answer]}
    told = {"type": "structural_tag", "format": form}
    return msgspec.structs.replace(wishes, **NO_GRAMMAR, structural_tag=told)


def _answer(grammar: Grammar) -> dict[str, Any] | None:
    """Return a grammar as part of a structural tag; None for what is free or cannot be read."""
    try:
        match grammar.kind:
            case GrammarKind.JSON:
                return {"type": "json_schema", "json_schema": {"type": "object"}}
            case GrammarKind.JSON_SCHEMA:
                schema = msgspec.json.decode(grammar.text)
                return {"type": "json_schema", "json_schema": schema}
            case GrammarKind.REGEX:
                return {"type": "regex", "pattern": grammar.text}
            case GrammarKind.EBNF:
                return {"type": "grammar", "grammar": grammar.text}
            case GrammarKind.STRUCTURAL_TAG:
                form = msgspec.json.decode(grammar.text, type=dict[str, Any]).get("format")
                is_free = not isinstance(form, dict) or form.get("type") == "triggered_tags"
                return None if is_free else form
    except (msgspec.DecodeError, RecursionError):
        return None  # whoever checks grammars says what is wrong

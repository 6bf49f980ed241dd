"""A schema that its grammar would not hold is found out; all others pass."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.engine.json_schema import DEPTH_LIMIT, IGNORED, unheld

INTEGER: dict[str, Any] = {"type": "integer"}


@pytest.mark.parametrize("keyword", IGNORED)
def test_what_grammars_leave_out_is_found_at_any_depth(keyword: str) -> None:
    inner = {"type": "object", keyword: {}}
    outer = {"type": "object", "properties": {"a": {"type": "array", "items": inner}}}
    for schema in (inner, outer, {"$defs": {"x": inner}}, {"anyOf": [INTEGER, inner]}):
        assert unheld(schema) == f"{keyword} is not supported"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "pattern beside"),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "allOf with more than one"),
        ({"$ref": "http://x/y"}, "only #/"),
        ({"$ref": "#name"}, "only #/"),
        ({"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": INTEGER}}, "minimum beside $ref"),
        ({"type": "object", "required": ["a"], "anyOf": [{}]}, "required beside anyOf"),
    ],
)
def test_what_would_be_held_in_part_is_found(schema: dict[str, Any], words: str) -> None:
    assert words in unheld(schema)


def test_schemas_are_nested_so_deep_and_no_deeper() -> None:
    schema: dict[str, Any] = {}
    for _ in range(DEPTH_LIMIT):
        schema = {"type": "array", "items": schema}
    assert unheld(schema) == ""
    assert "nested more than" in unheld({"anyOf": [schema]})


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object", "properties": {"not": INTEGER, "if": {"type": "string"}}},
        {"enum": ["not", {"if": 1}]},
        {"const": {"contains": 1}},
        {"$ref": "#/$defs/x", "$defs": {"x": INTEGER}, "description": "a number"},
        {"allOf": [{"$ref": "#"}], "title": "T"},
        {"anyOf": [INTEGER, {"type": "null"}], "default": None},
        {"type": "array", "uniqueItems": False, "items": INTEGER},
        {"type": "string", "pattern": "^a+$"},
    ],
)
def test_what_is_held_passes(schema: object) -> None:
    assert unheld(schema) == ""

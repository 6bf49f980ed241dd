"""One tool call while it is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.front.call_scanner import CallScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), st.booleans(), st.integers(0, 2))
def test_arguments_come_as_the_very_text_however_it_is_cut(
    arguments: dict[str, object],
    name_first: bool,  # noqa: FBT001
    indent: int,
) -> None:
    fields = {"name": "f", "arguments": arguments}
    ordered = fields if name_first else dict(reversed(fields.items()))
    text = json.dumps(ordered, indent=indent or None)
    scanner, out = CallScanner({"f"}), ""
    for character in text:
        assert scanner.feed(character) == ""
        out += scanner.arguments() if scanner.is_call else ""
    assert scanner.done
    assert json.loads(out) == arguments
    assert out in text


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": null}', "null"),
        ('{"name": "f", "arguments": [1, {"name": "g"}]}', '[1, {"name": "g"}]'),
    ],
)
def test_arguments_have_several_forms(text: str, arguments: str) -> None:
    scanner = CallScanner({"f"})
    assert scanner.feed(text + "rest") == "rest"
    assert (scanner.name, scanner.arguments()) == ("f", arguments)
    assert scanner.arguments() == ""


def test_an_object_is_a_call_when_its_name_is_a_tools() -> None:
    scanner = CallScanner({"f"})
    assert scanner.feed('{"na') == ""
    assert scanner.is_call is None
    scanner.feed('me": "g"')
    assert scanner.is_call is False
    nameless = CallScanner({"f"})
    nameless.feed('{"x": {"name": "f"}}')
    assert nameless.is_call is False

"""OpenAI's bodies as types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody, Tool

CLIENTS = {
    ChatBody: chat_create_params.CompletionCreateParamsBase,
    CompletionBody: completion_create_params.CompletionCreateParamsBase,
}


@pytest.mark.parametrize("form", [ChatBody, CompletionBody])
def test_every_field_of_openais_own_client_is_known(form: Any) -> None:
    known = {*form.__struct_fields__, *SharedBody.__struct_fields__}
    assert set(CLIENTS[form].__annotations__) - known == set()


def test_no_field_is_read_twice() -> None:
    for form in (ChatBody, CompletionBody):
        assert not set(form.__struct_fields__) & set(SharedBody.__struct_fields__)


def test_a_tool_has_a_type_and_a_function_with_a_name() -> None:
    right = {"type": "function", "function": {"name": "f", "parameters": {}, "more": 1}}
    assert msgspec.convert(right, Tool).function.name == "f"
    for wrong in ({}, {"type": "function"}, {"type": "function", "function": {}}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Tool)

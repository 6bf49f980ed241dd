"""From a chat to its prompt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons.front.chat_prompt import ChatPrompt, chat_prompt, tool_form
from daemons.front.chat_template import ChatTemplate
from daemons.front.model_card import ModelCard, load
from daemons.front.tool_calls import ToolForm
from daemons.protocol.api.openai_bodies import ChatBody
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import Refusal
from tests.support.tiny_model import CHAT_TEMPLATE, tiny_model

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
KEY = RoomKey(7, 1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    return load(str(tiny_model(Path(tmp_path_factory.mktemp("model")))))


def with_template(card: ModelCard, source: str) -> ModelCard:
    return dataclasses.replace(card, chat=ChatTemplate(source, {}))


def prompt(
    card: ModelCard, tool_calls: str = "auto", reasoning: str = "auto", **fields: Any
) -> ChatPrompt:
    body = msgspec.convert({"messages": HI, **fields}, ChatBody)
    return chat_prompt(body, card, tool_calls, reasoning)


def test_a_prompt_is_what_the_template_makes(plain: ModelCard) -> None:
    assert prompt(plain).text == "<|user|>hi\n<|assistant|>"
    assert prompt(plain, add_generation_prompt=False).text == "<|user|>hi\n"


def test_an_answer_may_go_on_from_the_last_message(plain: ModelCard) -> None:
    messages = [*HI, {"role": "assistant", "content": "He said "}]
    going_on = prompt(plain, messages=messages, continue_final_message=True)
    assert going_on.text == "<|user|>hi\n<|assistant|>He said"


def test_a_template_gets_tools_and_variables(plain: ModelCard) -> None:
    card = with_template(plain, "{{ tools | tojson }} {{ reasoning_effort }} {{ x }}")
    said = prompt(card, tools=[TOOL], reasoning_effort="low", chat_template_kwargs={"x": 1})
    assert said.text == '[{"type": "function", "function": {"name": "f"}}] low 1'
    assert prompt(card, tools=[TOOL], tool_choice="none").text.startswith("null")


def test_a_model_whose_template_knows_no_tools_is_told_by_the_system(plain: ModelCard) -> None:
    said = prompt(plain, tools=[TOOL])
    assert said.text.startswith("<|system|>You may call functions.")
    assert '{"name":"f"}' in said.text


def test_calls_are_found_in_the_form_of_the_model(plain: ModelCard) -> None:
    assert tool_form("auto", "... <tool_call> ... tools") is ToolForm.HERMES
    assert tool_form("auto", "... <|python_tag|> ...") is ToolForm.LLAMA3
    assert tool_form("auto", CHAT_TEMPLATE) is ToolForm.HERMES
    assert tool_form("llama3", "<tool_call>") is ToolForm.LLAMA3
    text = prompt(plain, "llama3", tools=[TOOL]).answer(KEY)
    assert text.feed('{"name": "f", "parameters": {}}', ends=True)["tool_calls"]
    assert prompt(plain).answer(KEY).tools is None


def test_tools_may_be_switched_off(plain: ModelCard) -> None:
    with pytest.raises(Refusal, match="tools: switched off"):
        prompt(plain, "none", tools=[TOOL])
    assert prompt(plain, "none").text


def test_thoughts_are_told_apart_where_the_model_has_them(plain: ModelCard) -> None:
    thinking = with_template(plain, CHAT_TEMPLATE + "{# <think> #}")
    assert prompt(thinking).answer(KEY).think is not None
    assert prompt(thinking, separate_reasoning=False).answer(KEY).think is None
    assert prompt(thinking, reasoning="none").answer(KEY).think is None
    assert prompt(plain).answer(KEY).think is None
    assert prompt(plain, reasoning="think").answer(KEY).think is not None
    opened = with_template(plain, "x<think>\n")
    assert prompt(opened).answer(KEY).feed("hm</think>a", ends=True) == {
        "reasoning_content": "hm",
        "content": "a",
    }


def test_what_a_template_refuses_is_told(plain: ModelCard) -> None:
    with pytest.raises(Refusal, match="the chat template refuses them: no"):
        prompt(with_template(plain, "{{ raise_exception('no') }}"))
    with pytest.raises(Refusal, match="no chat template"):
        prompt(dataclasses.replace(plain, chat=None))
    with pytest.raises(Refusal, match="continue_final_message"):
        prompt(with_template(plain, "x"), continue_final_message=True)

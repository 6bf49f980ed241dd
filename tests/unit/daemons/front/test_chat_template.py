"""Messages become prompts as transformers makes them."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.front.chat_template import ChatTemplate, TemplateRefusal
from daemons.front.model_card import load
from tests.support.tiny_model import CHAT_TEMPLATE, tiny_model

SMOLLM2 = Path.home() / ".cache" / "pd" / "models" / "smollm2-135m-instruct"
HI = [{"role": "user", "content": "hi"}]
TALKS = [
    HI,
    [{"role": "system", "content": "be brief"}, *HI],
    [*HI, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "é\n\n中 'x'"}],
]
ODD = """
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- generation %}
{{ message | tojson(indent=2) }} {{ message.content | trim }}
    {%- endgeneration %}
{%- endfor %}
{% if tools is none and documents is none %}{{ bos_token }}{% endif %}
"""


def render(source: str, said: list[dict[str, str]], **more: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(said, more=more)


def theirs(directory: Path, messages: list[dict[str, str]], **more: object) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **more
            )
        )


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, ODD])
@pytest.mark.parametrize("messages", TALKS)
def test_a_prompt_equals_that_of_transformers(
    source: str, messages: list[dict[str, str]], tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(source)
    chat = load(str(model)).chat
    assert chat is not None
    assert chat.render(messages) == theirs(model, messages)


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"NOT CHECKED: no embedded model at {SMOLLM2}")
@pytest.mark.parametrize("messages", TALKS)
def test_a_prompt_of_the_embedded_model_equals_that_of_transformers(
    messages: list[dict[str, str]],
) -> None:
    chat = load(str(SMOLLM2)).chat
    assert chat is not None
    assert chat.render(messages) == theirs(SMOLLM2, messages)


def test_a_template_may_refuse_messages() -> None:
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", HI)


@pytest.mark.parametrize("source", ["{{ messages[0]['content'] + 1 }}", "{{ 1 / 0 }}"])
def test_a_template_that_fails_on_these_messages_refuses_them(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        render(source, HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__subclasses__() }}",
    ],
)
def test_a_template_can_change_nothing_and_reach_nothing(source: str) -> None:
    messages = [dict(message) for message in HI]
    try:
        out = render(source, messages)
    except TemplateRefusal:
        out = ""
    assert messages == HI
    assert "class" not in out


def test_a_template_may_write_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}", HI) == str(datetime.datetime.now().year)


def test_a_client_may_set_variables_but_not_those_of_the_server() -> None:
    source = "{{ tone }} {{ bos_token }} {{ messages | length }}"
    assert render(source, HI, tone="dry", bos_token="X", messages=[]) == "dry <s> 1"


def test_a_generation_prompt_may_be_left_out() -> None:
    chat = ChatTemplate(CHAT_TEMPLATE, {})
    assert chat.render(HI, add_generation_prompt=False) == "<|user|>hi\n"


def test_a_broken_template_is_the_operators_error() -> None:
    with pytest.raises(OperatorError, match="chat template"):
        ChatTemplate("{% if %}", {})

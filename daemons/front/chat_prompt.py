"""From a chat request to its prompt, and to the parts that the answer will have.

What a model can do is seen from its template and vocabulary, unless the cluster file says it:
Hermes' tags in a template mean tool calls in that form, Llama 3's tag means its JSON, ``<think>``
means thoughts. A model that knows no tools is told of them in the form of Hermes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daemons.front.chat_template import TemplateRefusal
from daemons.front.chat_text import ChatText
from daemons.front.messages import template_messages, with_system
from daemons.front.model_card import ModelCard
from daemons.front.reasoning import OPEN as THINK
from daemons.front.reasoning import Place, split_for
from daemons.front.tool_calls import OPEN, PYTHON_TAG, ToolForm, ToolText
from daemons.front.tools import ToolWishes, tool_wishes
from daemons.protocol.api.openai_bodies import ChatBody
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import invalid

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt, and how to read its answer."""

    text: str
    tools: ToolWishes
    form: ToolForm
    thinks: bool  # thoughts are told apart
    in_pieces: bool

    @property
    def structural_tag(self) -> dict[str, Any] | None:
        """The grammar of calls that must be, if any must."""
        return self.tools.structural_tag(self.form)

    @property
    def place(self) -> Place:
        """Where the answer begins: the template may have opened the thoughts."""
        return split_for(self.text, in_pieces=self.in_pieces).place

    def answer(self, key: RoomKey) -> ChatText:
        """Return the empty answer of a room."""
        think = split_for(self.text, in_pieces=self.in_pieces) if self.thinks else None
        tools = None
        if self.tools.offered:
            tools = ToolText(self.form, self.tools.names, self.tools.one_only)
        return ChatText(key, think, tools)


def chat_prompt(body: ChatBody, card: ModelCard, tool_calls: str, reasoning: str) -> ChatPrompt:
    """Return the prompt of a chat; ``tool_calls`` and ``reasoning`` are the cluster's settings.

    Raises:
        Refusal: 400, with the message or tool that is wrong, or in the template's own words.
    """
    if card.chat is None:
        raise invalid("the model has no chat template; use /v1/completions")
    source = card.chat.source
    tools = tool_wishes(body)
    if tools.offered and tool_calls == NONE:
        raise invalid("tools: switched off for this model")
    messages = template_messages(body.messages, source)
    if tools.offered and "tools" not in source:
        messages = with_system(messages, tools.told())
    text = _rendered(body, card, messages, tools)
    separate = reasoning != NONE and body.separate_reasoning is not False
    thinks = separate and (reasoning != AUTO or knows_thoughts(card))
    form = tool_form(tool_calls, source)
    return ChatPrompt(text, tools, form, thinks, body.stream_reasoning is not False)


def tool_form(tool_calls: str, source: str) -> ToolForm:
    """Return how the model of a template writes calls, unless ``tool_calls`` says it."""
    if tool_calls in (AUTO, NONE):
        is_llama = OPEN not in source and (PYTHON_TAG in source or '"parameters":' in source)
        return ToolForm.LLAMA3 if is_llama else ToolForm.HERMES
    return ToolForm(tool_calls)


def knows_thoughts(card: ModelCard) -> bool:
    """Say whether a model has a word for thoughts."""
    in_template = card.chat is not None and THINK in card.chat.source
    return in_template or card.tokenizer.token_to_id(THINK) is not None


def _rendered(
    body: ChatBody, card: ModelCard, messages: list[dict[str, Any]], tools: ToolWishes
) -> str:
    assert card.chat is not None
    more = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        more.setdefault("reasoning_effort", body.reasoning_effort)
    if tools.offered:
        more["tools"] = tools.for_template()
    goes_on = body.continue_final_message is True
    try:
        text = card.chat.render(
            messages,
            add_generation_prompt=not goes_on and body.add_generation_prompt is not False,
            more=more,
        )
    except TemplateRefusal as error:
        raise invalid(f"messages: the chat template refuses them: {error}") from error
    return _cut_after(text, str(messages[-1]["content"]).strip()) if goes_on else text


def _cut_after(text: str, last: str) -> str:
    """Return a prompt that ends with the last message's own words."""
    at = text.rfind(last)
    if at < 0 or not last:
        raise invalid("continue_final_message: the template does not show the last message")
    return text[: at + len(last)]

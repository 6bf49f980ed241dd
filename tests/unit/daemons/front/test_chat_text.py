"""What a chat's text is made of."""

from __future__ import annotations

from daemons.front.chat_text import ChatText
from daemons.front.reasoning import ThinkSplit
from daemons.front.tool_calls import ToolForm, ToolText
from daemons.protocol.ids import RoomKey

KEY = RoomKey(7, 1)
TEXT = '<think>hm</think>Ok. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def chat_text(key: RoomKey = KEY) -> ChatText:
    return ChatText(key, ThinkSplit(), ToolText(ToolForm.HERMES, {"f"}))


def test_a_text_becomes_a_message() -> None:
    text = chat_text()
    text.feed(TEXT, ends=True)
    message = text.message()
    assert (message["reasoning_content"], message["content"]) == ("hm", "Ok.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert text.has_calls


def test_deltas_add_up_to_the_message() -> None:
    text, sums = chat_text(), {"reasoning_content": "", "content": ""}
    arguments, ids = "", []
    for n, character in enumerate(TEXT):
        delta = text.feed(character, ends=n == len(TEXT) - 1)
        for name in sums:
            sums[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            ids += [call["id"]] if "id" in call else []
            arguments += call["function"]["arguments"]
    message = text.message()
    assert {name: message[name] for name in sums} == sums
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    assert ids == [message["tool_calls"][0]["id"]]


def test_both_legs_of_a_room_call_a_call_the_same_and_other_rooms_do_not() -> None:
    def id_of(key: RoomKey) -> str:
        text = chat_text(key)
        text.feed(TEXT, ends=True)
        return str(text.message()["tool_calls"][0]["id"])

    assert id_of(KEY) == id_of(KEY) != id_of(RoomKey(8, 1))


def test_without_splits_all_is_content() -> None:
    text = ChatText(KEY)
    assert text.feed(TEXT, ends=True) == {"content": TEXT}
    assert text.message() == {"role": "assistant", "content": TEXT, "refusal": None}


def test_a_message_of_calls_alone_has_no_content() -> None:
    text = ChatText(KEY, None, ToolText(ToolForm.HERMES, {"f"}))
    text.feed('<tool_call>{"name": "f"}</tool_call>', ends=True)
    assert text.message()["content"] is None

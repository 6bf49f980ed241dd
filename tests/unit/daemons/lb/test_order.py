from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.lb.order import CHAT, COMPLETIONS, GENERATE, BadOrder, read_order


def order_items(path: str, body: dict[str, Any]) -> int | None:
    return read_order(path, json.dumps(body).encode(), 100).items


@pytest.mark.parametrize(
    ("path", "body", "items"),
    [
        (GENERATE, {"text": "a"}, None),
        (GENERATE, {"text": ["a"]}, 1),
        (GENERATE, {"text": ["a", "b"]}, 2),
        (GENERATE, {"input_ids": [1, 2, 3]}, None),
        (GENERATE, {"input_ids": [[1], [2, 3], [4]]}, 3),
        (GENERATE, {}, None),
        (COMPLETIONS, {"prompt": "a"}, None),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 2),
        (COMPLETIONS, {"prompt": [1, 2]}, None),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (CHAT, {"messages": [{"role": "user", "content": "a"}] * 3}, None),
    ],
)
def test_a_list_of_prompts_is_a_batch_and_a_list_of_tokens_is_not(
    path: str, body: dict[str, Any], items: int | None
) -> None:
    assert order_items(path, body) == items


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"null", b"{", b'{"text": nope}', b"\xff"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadOrder, match="body"):
        read_order(GENERATE, body, 100)


@pytest.mark.parametrize("prompts", [[], ["a"] * 101])
def test_a_batch_of_none_or_too_many_is_refused(prompts: list[str]) -> None:
    with pytest.raises(BadOrder, match="1 to 100 are served"):
        read_order(COMPLETIONS, json.dumps({"prompt": prompts}).encode(), 100)


def test_deep_nesting_is_refused_and_not_followed() -> None:
    with pytest.raises(BadOrder):
        read_order(GENERATE, b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 100)


def test_one_prompt_gets_scalars() -> None:
    body = read_order(GENERATE, b'{"text": "a", "more": 1}', 100).body([7], "h", 8998, "p0")
    assert json.loads(body) == {
        "text": "a",
        "more": 1,
        "bootstrap_host": "h",
        "bootstrap_port": 8998,
        "bootstrap_room": 7,
        "bootstrap_instance": "p0",
    }


def test_a_batch_gets_lists() -> None:
    body = read_order(GENERATE, b'{"text": ["a", "b"]}', 100).body([7, 8], "h", 8998, "p0")
    said = json.loads(body)
    assert said["bootstrap_room"] == [7, 8]
    assert said["bootstrap_host"] == ["h", "h"]
    assert said["bootstrap_port"] == [8998, 8998]
    assert said["bootstrap_instance"] == "p0"


def test_what_the_client_said_about_the_meeting_is_not_believed() -> None:
    raw = b'{"text": "a", "bootstrap_host": "evil", "bootstrap_attempt": 9, "bootstrap_room": 1}'
    said = json.loads(read_order(GENERATE, raw, 100).body([7], "h", 8998, "p0"))
    assert (said["bootstrap_host"], said["bootstrap_room"]) == ("h", 7)
    assert "bootstrap_attempt" not in said


def test_other_fields_keep_their_very_bytes() -> None:
    raw = b'{"text": "a", "x": 1e400, "y": 0.10000000000000000000001, "z": {"k" : [1,2 ]}}'
    body = read_order(GENERATE, raw, 100).body([7], "h", 8998, "p0")
    for kept in (b"1e400", b"0.10000000000000000000001", b'{"k" : [1,2 ]}'):
        assert kept in body


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=8).filter(lambda n: not n.startswith("bootstrap_")), values)
)
def test_any_fields_pass_unchanged(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields, ensure_ascii=False).encode("utf-8", "ignore")
    given_fields = json.loads(raw)
    said = json.loads(read_order(CHAT, raw, 100).body([7], "h", 1, "p0"))
    assert {name: said[name] for name in given_fields} == given_fields


@pytest.mark.parametrize(
    ("path", "body", "wants"),
    [
        (GENERATE, {"return_logprob": True}, True),
        (GENERATE, {"return_logprob": [False, True]}, True),
        (GENERATE, {"return_logprob": [False]}, False),
        (GENERATE, {}, False),
        (CHAT, {"return_logprob": True}, False),
    ],
)
def test_prompt_logprobs_are_merged_where_generate_asks_for_them(
    path: str, body: dict[str, Any], *, wants: bool
) -> None:
    assert read_order(path, json.dumps(body).encode(), 100).wants_prompt_logprobs is wants


@pytest.mark.parametrize(("stream", "expected"), [(True, True), (False, False), (None, False)])
def test_only_true_is_a_stream(*, stream: bool | None, expected: bool) -> None:
    assert read_order(CHAT, json.dumps({"stream": stream}).encode(), 1).stream is expected


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (GENERATE, {"text": "a" * 38, "sampling_params": {"max_new_tokens": 7}}, 10 + 7),
        (GENERATE, {"input_ids": [[10, 20, 30], [40, 50]]}, 4 + 2 * 128),
        (COMPLETIONS, {"prompt": "a" * 38, "max_tokens": 5}, 10 + 5),
        (CHAT, {"messages": [], "max_tokens": 5, "max_completion_tokens": 9}, 9),
        (GENERATE, {"sampling_params": [{"max_new_tokens": 7}]}, 128),
    ],
)
def test_tokens_are_estimated_from_bytes_and_wishes(
    path: str, body: dict[str, Any], tokens: int
) -> None:
    assert read_order(path, json.dumps(body).encode(), 100).tokens == tokens


@pytest.mark.parametrize(
    ("path", "body", "rooms"),
    [
        (CHAT, {"messages": [], "n": 4}, 4),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, 6),
        (GENERATE, {"text": "a", "sampling_params": {"n": 2}}, 2),
        (GENERATE, {"text": ["a", "b"], "sampling_params": [{"n": 2}, {"n": 2}]}, 4),
        (CHAT, {"messages": [], "n": 1}, 1),
        (CHAT, {"messages": [], "n": None}, 1),
        (CHAT, {"messages": [], "n": "4"}, 1),
        (CHAT, {"messages": [], "n": True}, 1),
        (CHAT, {"messages": [], "n": -3}, 1),
        (GENERATE, {"text": "a", "sampling_params": 5}, 1),
    ],
)
def test_each_sample_of_each_item_has_a_room(path: str, body: Any, rooms: int) -> None:
    order = read_order(path, json.dumps(body).encode(), 100)
    assert order.rooms == rooms
    drawn = list(range(1, rooms + 1))
    said = json.loads(order.body(drawn, "h", 1, "p0"))["bootstrap_room"]
    assert said == (drawn if rooms > 1 else 1)


def test_too_many_samples_are_refused() -> None:
    with pytest.raises(BadOrder, match="200 texts in one request"):
        read_order(COMPLETIONS, b'{"prompt": ["a", "b"], "n": 100}', 100)


@pytest.mark.parametrize(
    ("path", "body", "wants"),
    [
        (COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 0}, True),
        (COMPLETIONS, {"prompt": "a", "echo": True}, False),
        (COMPLETIONS, {"prompt": "a", "logprobs": 1}, False),
        (CHAT, {"messages": [], "echo": True, "logprobs": True}, False),
    ],
)
def test_an_echo_with_log_probabilities_wants_prefills(path: str, body: Any, wants: bool) -> None:  # noqa: FBT001
    assert read_order(path, json.dumps(body).encode(), 100).wants_prompt_logprobs is wants


def test_a_decode_alone_is_told_so_whatever_the_client_says() -> None:
    raw = b'{"text": "a", "local_prefill": false, "bootstrap_host": "x"}'
    order = read_order("/generate", raw, 10)
    assert json.loads(order.alone_body([7])) == {
        "text": "a",
        "bootstrap_room": 7,
        "local_prefill": True,
    }
    batch = read_order("/generate", b'{"text": ["a", "b"]}', 10)
    assert json.loads(batch.alone_body([7, 8], 2))["bootstrap_room"] == [7, 8]
    assert json.loads(batch.alone_body([7, 8], 2))["bootstrap_attempt"] == 2


def test_a_retry_names_its_attempt_and_a_first_try_does_not() -> None:
    order = read_order("/generate", b'{"text": "a"}', 10)
    assert "bootstrap_attempt" not in json.loads(order.body([7], "h", 1, "p0"))
    assert json.loads(order.body([7], "h", 1, "p0", 3))["bootstrap_attempt"] == 3
    assert "bootstrap_instance" not in json.loads(order.body([7], "h", 1, ""))


def test_the_prompt_is_there_as_it_came() -> None:
    assert read_order("/generate", b'{"text": "a b"}', 10).prompt == b'"a b"'
    assert read_order("/generate", b'{"input_ids": [1, 2]}', 10).prompt == b"[1, 2]"
    assert read_order("/generate", b"{}", 10).prompt == b""


def test_a_body_may_say_to_which_session_it_belongs() -> None:
    def session(raw: bytes) -> str:
        return read_order("/generate", raw, 10).session

    assert session(b'{"user": "u"}') == "u"
    assert session(b'{"user": "u", "session_id": "s"}') == "s"
    assert session(b'{"user": 7}') == session(b"{}") == ""
    assert len(session(b'{"user": "%s"}' % (b"x" * 1000))) == 256


@pytest.mark.parametrize(
    ("said", "salt"),
    [
        ({}, "5:alice:"),
        ({"cache_salt": "x"}, "5:alice:x"),
        ({"cache_salt": ["x", "y"]}, ["5:alice:x", "5:alice:y"]),
        ({"cache_salt": None}, "5:alice:"),
        ({"cache_salt": [None, "x"]}, ["5:alice:", "5:alice:x"]),
        ({"cache_salt": 5}, 5),
    ],
)
def test_a_clients_cache_is_its_own(said: dict[str, Any], salt: object) -> None:
    raw = json.dumps({"text": "a", **said}).encode()
    body = read_order(GENERATE, raw, 100).salted("alice").body([7], "h", 1, "p0")
    assert json.loads(body)["cache_salt"] == salt
    assert json.loads(body)["text"] == "a"

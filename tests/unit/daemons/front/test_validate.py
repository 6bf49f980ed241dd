"""Rooms, ids and times of a request."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from daemons.front.config import FrontConfig
from daemons.front.meetings import Meeting
from daemons.front.validate import (
    CREATED_HEADER,
    ID_HEADER,
    TIMEOUT_HEADER,
    Place,
    created_s,
    derived_room,
    each,
    places,
    request_id,
    request_ids,
    timeout_s,
)
from daemons.protocol.api.generate_body import GenerateBody
from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.protocol.api.pair import PairBody
from daemons.protocol.generate import FinishReason, Submit
from daemons.protocol.ids import ROOM_LIMIT, RoomKey
from daemons.protocol.topology import Role
from daemons.runtime.http import Refusal
from tests.support.front_bench import Bench, front_bench, front_config

DECODE = front_config(Path("model"), "http://127.0.0.1:8998")
PREFILL = front_config(Path("model"), "http://127.0.0.1:8998", Role.PREFILL)


def found(prompts: int = 1, config: FrontConfig = DECODE, **body: Any) -> list[Place]:
    return places(msgspec.convert(body, PairBody), prompts, config)


def test_one_prompt_has_one_room() -> None:
    assert found(bootstrap_room=7) == [Place(RoomKey(7, 1), "")]
    assert found(bootstrap_room=[7], bootstrap_attempt=2) == [Place(RoomKey(7, 2), "")]


def test_each_prompt_of_a_batch_has_its_own() -> None:
    assert found(2, bootstrap_room=[7, 8], bootstrap_instance=["p0", "p1"]) == [
        Place(RoomKey(7, 1), "p0"),
        Place(RoomKey(8, 1), "p1"),
    ]


def test_each_sample_of_each_prompt_has_its_own_prompt_by_prompt() -> None:
    body = {"bootstrap_room": [7, 8, 9, 10], "bootstrap_instance": ["p0", "p1"]}
    places_found = places(msgspec.convert(body, PairBody), 2, DECODE, samples=2)
    assert [(place.key.room, place.prefill) for place in places_found] == [
        (7, "p0"),
        (8, "p0"),
        (9, "p1"),
        (10, "p1"),
    ]


def test_a_room_for_all_samples_is_the_firsts_and_the_others_are_derived() -> None:
    for rooms in (7, [7]):
        body = msgspec.convert({"bootstrap_room": rooms}, PairBody)
        drawn = [place.key.room for place in places(body, 1, DECODE, samples=3)]
        assert drawn == [7, derived_room(7, 1), derived_room(7, 2)]
        assert len(set(drawn)) == 3
        assert all(0 < room < ROOM_LIMIT for room in drawn)


def test_a_room_for_all_prompts_is_the_firsts_and_the_others_are_derived() -> None:
    drawn = [place.key.room for place in found(3, bootstrap_room=7)]
    assert drawn == [7, derived_room(7, 1), derived_room(7, 2)]
    body = msgspec.convert({"bootstrap_room": 7}, PairBody)
    drawn = [place.key.room for place in places(body, 2, DECODE, samples=2)]
    assert drawn == [7, *(derived_room(7, n) for n in (1, 2, 3))]


def test_a_room_of_more_bits_than_ours_is_folded_the_same_everywhere() -> None:
    (place,) = found(bootstrap_room=2**62 + 5)
    assert place.key.room == derived_room(2**62 + 5, 0) < ROOM_LIMIT
    assert found(bootstrap_room=[2**62 + 5])[0] == place
    assert found(bootstrap_room=ROOM_LIMIT - 1)[0].key.room == ROOM_LIMIT - 1


def test_both_legs_tell_when_a_request_came_as_the_balancer_says() -> None:
    said = make_mocked_request("POST", "/", headers={CREATED_HEADER: "1700000000"})
    assert created_s(said) == 1_700_000_000
    for wrong in ("soon", "-1", "9" * 30):
        assert created_s(make_mocked_request("POST", "/", headers={CREATED_HEADER: wrong})) > 1.7e9


def test_a_prefill_serves_its_own_prompts_only() -> None:
    assert found(config=PREFILL, bootstrap_room=7)[0].prefill == "p0"
    assert found(config=PREFILL, bootstrap_room=7, bootstrap_instance="p0")[0].prefill == "p0"
    with pytest.raises(Refusal, match="'p1'; this is 'p0'"):
        found(config=PREFILL, bootstrap_room=7, bootstrap_instance="p1")


def test_the_configured_phone_book_may_be_named_and_no_other() -> None:
    right = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 8998}
    assert found(bootstrap_room=7, **right)
    assert found(bootstrap_room=[7], **{name: [value] for name, value in right.items()})
    for wrong in ({"bootstrap_host": "10.0.0.9"}, {"bootstrap_port": 1}):
        with pytest.raises(Refusal, match=r"here is 127\.0\.0\.1:8998"):
            found(bootstrap_room=7, bootstrap_instance="p0", **{**right, **wrong})
        with pytest.raises(Refusal, match=r"here is 127\.0\.0\.1:8998"):
            found(config=PREFILL, bootstrap_room=7, **{**right, **wrong})


def test_another_name_of_the_phone_book_may_be_used_where_it_is_configured() -> None:
    known = msgspec.structs.replace(DECODE, bootstrap_aliases=frozenset({("n1.example", 8998)}))
    assert found(config=known, bootstrap_room=7, bootstrap_host="n1.example")
    for wrong in ({"bootstrap_host": "n1.example", "bootstrap_port": 1}, {"bootstrap_host": "n2"}):
        with pytest.raises(Refusal, match="the phone book here is"):
            found(config=known, bootstrap_room=7, bootstrap_instance="p0", **wrong)


def test_where_no_instance_is_named_the_place_to_meet_tells_it() -> None:
    at = {"bootstrap_host": "10.0.0.9", "bootstrap_port": 30000}
    assert found(bootstrap_room=7, **at) == [
        Place(RoomKey(7, 1), "", meeting=Meeting("10.0.0.9", 30000))
    ]
    (first, second) = found(
        2, bootstrap_room=[7, 8], bootstrap_host=["10.0.0.9", None], bootstrap_port=[None, None]
    )
    assert first.meeting == Meeting("10.0.0.9", 8998)
    assert second.meeting is None


def test_a_prefill_may_be_named_by_its_own_place_and_not_by_anothers() -> None:
    at_home = msgspec.structs.replace(PREFILL, advertise="10.0.0.9", port=30000)
    for port in (30000, 8998):
        named = {"bootstrap_host": "10.0.0.9", "bootstrap_port": port}
        assert found(config=at_home, bootstrap_room=7, **named)[0].prefill == "p0"
    for host, port in (("10.0.0.9", 30001), ("10.0.0.8", 30000)):
        with pytest.raises(Refusal, match=r"this prefill is 10\.0\.0\.9:30000") as refusal:
            found(config=at_home, bootstrap_room=7, bootstrap_host=host, bootstrap_port=port)
        assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("prompts", "body", "text"),
    [
        (1, {}, "bootstrap_room is missing"),
        (1, {"bootstrap_room": 0}, "above 0"),
        (1, {"bootstrap_room": 2**63}, r"2\*\*63"),
        (1, {"bootstrap_room": -1}, "above 0"),
        (1, {"bootstrap_room": [1, 2]}, "2 entries for 1 prompts"),
        (2, {"bootstrap_room": [7, 7]}, "share a room"),
        (1, {"bootstrap_room": 7, "bootstrap_attempt": 1001}, "1 to 1000"),
        (1, {"bootstrap_room": 7, "bootstrap_attempt": -1}, "1 to 1000"),
        (1, {"bootstrap_room": 7, "bootstrap_instance": "P 0"}, "no name of an instance"),
        (1000, {"bootstrap_room": 7}, "the limit is 256"),
    ],
)
def test_what_is_wrong_with_a_room_is_told(prompts: int, body: dict[str, Any], text: str) -> None:
    with pytest.raises(Refusal, match=text) as refusal:
        found(prompts, **body)
    assert refusal.value.status == 400


def test_a_client_may_say_how_long_it_waits() -> None:
    assert timeout_s(make_mocked_request("POST", "/"), DECODE) == DECODE.timers.total_s
    asked = make_mocked_request("POST", "/", headers={TIMEOUT_HEADER: "2.5"})
    assert timeout_s(asked, DECODE) == 2.5


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan", "inf", "1e9", ""])
def test_a_time_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(Refusal, match=TIMEOUT_HEADER):
        timeout_s(make_mocked_request("POST", "/", headers={TIMEOUT_HEADER: wrong}), DECODE)


def test_the_id_of_a_request_is_the_bodys_the_headers_or_a_new_one() -> None:
    request = make_mocked_request("POST", "/", headers={ID_HEADER: "abc"})
    assert request_id(request, "own") == "own"
    assert request_id(request) == "abc"
    plain = make_mocked_request("POST", "/")
    assert request_id(plain) != request_id(plain)


@pytest.mark.parametrize("wrong", ["a b", "a\nb", "x" * 257, "ü"])
def test_an_id_that_does_not_fit_into_a_log_is_refused(wrong: str) -> None:
    with pytest.raises(Refusal, match="request id"):
        request_id(make_mocked_request("POST", "/"), wrong)


def test_ids_of_a_batch_are_numbered_or_given() -> None:
    request = make_mocked_request("POST", "/")
    assert request_ids(request, "a", 1) == ["a"]
    assert request_ids(request, "a", 2) == ["a_0", "a_1"]
    assert request_ids(request, ["x", "y"], 2) == ["x", "y"]
    with pytest.raises(Refusal, match="rid: 1 entries for 2 prompts"):
        request_ids(request, ["x"], 2)


def test_a_scalar_holds_for_every_prompt() -> None:
    assert each("x", 5, 3) == [5, 5, 5]


JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.5, 1e308,
    "", "a", "\x00", "\ud7ff\U0001f600", "<|user|>", [], [[]], [1], [1, 2], ["a"], ["a", "b"],
    [None], [[1], [2]], [1, "a"], {}, {"a": 1}, {"role": "user", "content": "x"},
    [{"role": "user", "content": "x"}],
    {"max_new_tokens": 1}, [{}], {"type": "json_object"}, {"include_usage": True},
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "form", "right"),
    [
        ("/generate", GenerateBody, {"text": "hi"}),
        ("/v1/completions", CompletionBody, {"prompt": "hi"}),
        ("/v1/chat/completions", ChatBody, {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
async def test_no_junk_in_a_body_breaks_the_front(
    tmp_path: Path, path: str, form: Any, right: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    extra = () if form is GenerateBody else SharedBody.__struct_fields__
    names = [*form.__struct_fields__, *PairBody.__struct_fields__, *extra]
    async with front_bench(tmp_path) as bench:
        answering = asyncio.create_task(_answer_all(bench))
        seen = set()
        for _ in range(150):
            junk = {draw.choice(names): draw.choice(JUNK) for _ in range(draw.randint(1, 3))}
            async with bench.http.post(path, json=bench.body(**{**right, **junk})) as answer:
                text = await answer.text()
                seen.add(answer.status)
                assert answer.status in (200, 400, 503), (junk, text)
                assert answer.status != 503 or "bootstrap.unknown" in text, (junk, text)
        assert {200, 400} <= seen
        assert len(bench.desk.rooms) == 0
        answering.cancel()
        await asyncio.wait({answering})


async def _answer_all(bench: Bench) -> None:
    while True:
        await bench.rank.output(await bench.rank.hear(Submit), b"a", FinishReason.LENGTH)


def test_the_salt_of_the_cache_is_the_bodys_for_all_prompts_or_for_each() -> None:
    def salts(prompts: int, salt: Any) -> list[str]:
        rooms = list(range(1, prompts + 1))
        pair = PairBody(bootstrap_room=rooms, cache_salt=salt)
        return [place.cache_salt for place in places(pair, prompts, DECODE)]

    assert salts(1, None) == [""]
    assert salts(2, "a") == ["a", "a"]
    assert salts(2, ["a", None]) == ["a", ""]
    with pytest.raises(Refusal, match="257 characters, the limit is 256"):
        salts(1, "x" * 257)
    with pytest.raises(Refusal, match="cache_salt: 1 entries for 2 prompts"):
        salts(2, ["a"])


def test_a_priority_is_of_the_body_else_of_the_header_else_none() -> None:
    def priority(header: str | None = None, **body: Any) -> int:
        pair = msgspec.convert({"bootstrap_room": 7, **body}, PairBody)
        return places(pair, 1, DECODE, header)[0].priority

    assert priority() == 0
    assert priority("-7") == -7
    assert priority("3", priority=100) == 100
    assert priority("3", priority=0) == 0
    for wrong in ("high", "101", "1.5", "9" * 5000):
        with pytest.raises(Refusal, match="a whole number, -100 to 100"):
            priority(wrong)
    with pytest.raises(Refusal, match="'-101'"):
        priority(priority=-101)


LOCAL = msgspec.structs.replace(DECODE, local_prefill=True)


def test_a_decode_prefills_by_itself_when_it_is_asked_to_and_may() -> None:
    assert found(config=LOCAL, bootstrap_room=7, local_prefill=True) == [Place(RoomKey(7, 1), "d0")]
    assert found(2, LOCAL, bootstrap_room=[7, 8], bootstrap_attempt=3, local_prefill=True) == [
        Place(RoomKey(7, 3), "d0"),
        Place(RoomKey(8, 3), "d0"),
    ]
    assert found(config=LOCAL, bootstrap_room=7) == [Place(RoomKey(7, 1), "")]


def test_a_decode_draws_the_rooms_of_a_request_that_names_nobody() -> None:
    one, other = found(2, LOCAL)
    assert one.prefill == other.prefill == "d0"
    assert one.key.room != other.key.room
    assert found(config=LOCAL, local_prefill=True)[0].prefill == "d0"


@pytest.mark.parametrize(
    ("config", "body", "text"),
    [
        (DECODE, {"bootstrap_room": 7, "local_prefill": True}, "'d0' do not allow it"),
        (DECODE, {}, "bootstrap_room is missing"),
        (PREFILL, {"bootstrap_room": 7, "local_prefill": True}, "only a decode"),
        (LOCAL, {"bootstrap_port": 8998}, "bootstrap_room is missing"),
        (LOCAL, {"local_prefill": False}, "bootstrap_room is missing"),
        (
            LOCAL,
            {"bootstrap_room": 7, "bootstrap_instance": "p0", "local_prefill": True},
            "'p0'; this is 'd0'",
        ),
    ],
)
def test_what_is_not_a_prefill_of_its_own_is_refused(
    config: FrontConfig, body: dict[str, Any], text: str
) -> None:
    with pytest.raises(Refusal, match=text):
        found(config=config, **body)

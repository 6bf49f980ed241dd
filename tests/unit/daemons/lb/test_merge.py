from __future__ import annotations

import json
from typing import Any

from daemons.lb import merge


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def meta(**lists: Any) -> dict[str, Any]:
    return {"text": "x", "meta_info": {"id": "r", **lists}}


PREFILL = meta(input_token_logprobs=[[-1.5, 7, None]], input_top_logprobs=[None], cached_tokens=3)


def test_prefills_prompt_logprobs_take_the_place_of_decodes() -> None:
    decode = meta(input_token_logprobs=[], output_token_logprobs=[[-0.5, 8, None]])
    merged = json.loads(merge.into_answer(raw(decode), merge.of_answer(raw(PREFILL))))
    assert merged == meta(
        input_token_logprobs=[[-1.5, 7, None]],
        input_top_logprobs=[None],
        output_token_logprobs=[[-0.5, 8, None]],
    )


def test_a_batch_is_merged_item_by_item() -> None:
    prefill = [meta(input_token_logprobs=[[n, n, None]]) for n in (1, 2)]
    decode = [meta(), meta(), meta()]
    merged = json.loads(merge.into_answer(raw(decode), merge.of_answer(raw(prefill))))
    assert [item["meta_info"].get("input_token_logprobs") for item in merged] == [
        [[1, 1, None]],
        [[2, 2, None]],
        None,
    ]


def test_an_empty_list_of_prefill_changes_nothing() -> None:
    decode = meta(input_token_logprobs=[[-1.0, 1, None]])
    merged = merge.into_answer(raw(decode), merge.of_answer(raw(meta(input_token_logprobs=[]))))
    assert json.loads(merged) == decode


def test_what_is_no_json_passes_as_it_is() -> None:
    assert merge.into_answer(b"<html>", merge.of_answer(raw(PREFILL))) == b"<html>"
    assert merge.of_answer(b"<html>") == {}


def event(value: Any) -> bytes:
    return b"data: " + raw(value)


def test_a_stream_gets_the_lists_in_its_first_and_last_event() -> None:
    gathered = merge.Gathered()
    gathered.take(event(PREFILL))
    gathered.take(b"data: [DONE]")
    patch = merge.Patch(gathered.lists)
    first = patch.apply(event(meta()))
    assert json.loads(first[6:])["meta_info"]["input_token_logprobs"] == [[-1.5, 7, None]]
    second = event(meta(finish_reason=None))
    assert patch.apply(second) is second
    last = patch.apply(event(meta(finish_reason={"type": "stop"}, input_token_logprobs=[])))
    assert json.loads(last[6:])["meta_info"]["input_token_logprobs"] == [[-1.5, 7, None]]


def test_in_a_stream_of_a_batch_each_index_has_a_first_event() -> None:
    gathered = merge.Gathered()
    for n in (0, 1):
        gathered.take(event({**meta(input_token_logprobs=[[n, n, None]]), "index": n}))
    patch = merge.Patch(gathered.lists)
    seen = [json.loads(patch.apply(event({**meta(), "index": n}))[6:]) for n in (1, 1, 0)]
    assert [item["meta_info"].get("input_token_logprobs") for item in seen] == [
        [[1, 1, None]],
        None,
        [[0, 0, None]],
    ]


def choice(*logprobs: float | None, index: int = 0) -> dict[str, Any]:
    tops = [None if one is None else {"t": one} for one in logprobs]
    lists = {"token_logprobs": list(logprobs), "top_logprobs": tops}
    return {"index": index, "text": "", "logprobs": lists}


def test_an_echoed_prompt_gets_prefills_log_probabilities_in_the_places_of_decodes_nulls() -> None:
    prefill = {"choices": [choice(None, -1.0, -9.0), choice(None, -2.0, -9.0, index=1)]}
    decode = {"choices": [choice(None, None, -3.0, -4.0), choice(None, None, -5.0, index=1)]}
    lists = merge.of_answer(json.dumps(prefill).encode())
    said = json.loads(merge.into_answer(json.dumps(decode).encode(), lists))
    found = [one["logprobs"]["token_logprobs"] for one in said["choices"]]
    assert found == [[None, -1.0, -3.0, -4.0], [None, -2.0, -5.0]]
    assert said["choices"][0]["logprobs"]["top_logprobs"][1:3] == [{"t": -1.0}, {"t": -3.0}]


def test_a_streamed_echo_is_completed_in_its_first_event_only() -> None:
    gathered = merge.Gathered()
    gathered.take(event({"choices": [choice(None, -1.0, -9.0)]}))
    gathered.take(event({"choices": [{"index": 0, "logprobs": choice(-7.0)["logprobs"]}]}))
    patch = merge.Patch(gathered.lists)
    first = patch.apply(event({"choices": [choice(None, None, -3.0)]}))
    assert json.loads(first[6:])["choices"][0]["logprobs"]["token_logprobs"] == [None, -1.0, -3.0]
    second = event({"choices": [choice(None)]})
    assert patch.apply(second) is second


def test_events_that_carry_nothing_to_merge_are_left_alone() -> None:
    patch = merge.Patch({0: {"input_token_logprobs": [1]}})
    for other in (b": comment", b"data: [DONE]", b"data: 3"):
        assert patch.apply(other) is other
    assert patch.begun == set()

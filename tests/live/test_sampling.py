"""What a client asks of the sampler reaches it through pd-lb, and has its effect."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.support.cluster import Cluster, events, eventually, post

pytestmark = pytest.mark.live
TEXT = "The three primary colours are"
COUNTING = "one two three one two three one two three one two"
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
DRAWN = {**GREEDY, "temperature": 1.0}
HOT = {**GREEDY, "temperature": 5.0, "seed": 1}


def generate(cluster: Cluster, sampling: dict[str, Any], text: Any = TEXT, **more: Any) -> Any:
    status, answer = post(
        f"{cluster.lb}/generate", {"text": text, "sampling_params": sampling, **more}
    )
    assert status == 200, answer
    return answer


def test_a_seed_repeats_its_text_alone_and_in_a_batch(smollm: Cluster) -> None:
    first = generate(smollm, {**DRAWN, "seed": 7})["text"]
    both = generate(smollm, {**DRAWN, "seed": 7}, [TEXT, "Hello", TEXT])
    assert [both[0]["text"], both[2]["text"]] == [first, first]
    assert generate(smollm, {**DRAWN, "seed": 8})["text"] != first


def test_without_a_seed_texts_differ(smollm: Cluster) -> None:
    assert len({generate(smollm, DRAWN)["text"] for _ in range(3)}) > 1


@pytest.fixture(scope="module")
def greedy(smollm: Cluster) -> str:
    """The greedy text; a hot one is another."""
    text: str = generate(smollm, GREEDY)["text"]
    assert generate(smollm, HOT)["text"] != text
    return text


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_a_hot_text_that_may_only_take_the_best_token_is_the_greedy_one(
    smollm: Cluster, greedy: str, narrow: dict[str, Any]
) -> None:
    assert generate(smollm, {**HOT, **narrow})["text"] == greedy


@pytest.fixture(scope="module")
def repeating(smollm: Cluster) -> set[int]:
    """The tokens of a text that repeats itself."""
    return set(generate(smollm, GREEDY, COUNTING)["output_ids"])


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.8}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}],
    ids=str,
)
def test_a_penalty_makes_a_repeating_text_repeat_less(
    smollm: Cluster, repeating: set[int], penalty: dict[str, Any]
) -> None:
    said = generate(smollm, {**GREEDY, **penalty}, COUNTING)["output_ids"]
    assert len(set(said)) > len(repeating)


def test_a_stop_token_ends_the_text_but_not_before_its_least_length(smollm: Cluster) -> None:
    free = generate(smollm, GREEDY)["output_ids"]
    stop = {**GREEDY, "stop_token_ids": [free[3]]}
    place = free.index(free[3])
    cut = generate(smollm, stop)
    assert cut["output_ids"] == free[: place + 1]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[3]}
    longer = generate(smollm, {**stop, "min_new_tokens": place + 3})["output_ids"]
    assert len(longer) >= place + 3


def test_a_chat_ends_at_its_end_token_unless_that_is_ignored(smollm: Cluster) -> None:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Say only: hi"}],
        "temperature": 0,
        "max_tokens": 16,
    }
    url = f"{smollm.lb}/v1/chat/completions"
    _, ended = post(url, body)
    _, went_on = post(url, {**body, "ignore_eos": True})
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 16
    assert went_on["choices"][0]["finish_reason"] == "length"
    assert went_on["usage"]["completion_tokens"] == 16


def test_the_best_tokens_are_told_and_the_greedy_one_is_the_first_of_them(smollm: Cluster) -> None:
    meta = generate(smollm, GREEDY, return_logprob=True, top_logprobs_num=4)["meta_info"]
    chosen, best = meta["output_token_logprobs"], meta["output_top_logprobs"]
    assert len(chosen) == len(best) == 12
    for one, four in zip(chosen, best, strict=True):
        assert one == four[0]
        assert [top[0] for top in four] == sorted((top[0] for top in four), reverse=True)


def test_prompt_logprobs_of_a_stream_and_of_a_batch_are_those_of_a_whole_answer(
    smollm: Cluster,
) -> None:
    wanted = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    whole = generate(smollm, GREEDY, **wanted)["meta_info"]["input_token_logprobs"]
    assert len(whole) > 2
    assert whole[0][0] is None  # nothing precedes it
    body = {"text": TEXT, "sampling_params": GREEDY, "stream": True, **wanted}
    *said, last = events(f"{smollm.lb}/generate", body)
    assert last == "[DONE]"
    for told in (said[0], said[-1]):
        assert json.loads(told)["meta_info"]["input_token_logprobs"] == whole
    batch = generate(smollm, GREEDY, ["Hello", TEXT], **wanted)
    ids = [[one[1] for one in item["meta_info"]["input_token_logprobs"]] for item in batch]
    assert ids[1] == [one[1] for one in whole]
    assert len(ids[0]) == batch[0]["meta_info"]["prompt_tokens"]


def test_a_list_is_answered_in_its_order_each_with_its_own_parameters(smollm: Cluster) -> None:
    sampling = [{**GREEDY, "max_new_tokens": count} for count in (2, 5, 3)]
    status, answer = post(
        f"{smollm.lb}/generate", {"text": ["One", "Two", "Three"], "sampling_params": sampling}
    )
    assert status == 200
    assert [item["meta_info"]["completion_tokens"] for item in answer] == [2, 5, 3]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"text": 1}, "text"),
        ({}, "input_ids"),
        ({"input_ids": []}, "prompts"),
        ({"input_ids": [10**9]}, "vocabulary"),
        ({"text": "word " * 10_000}, "limit"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"temperatur": 1}}, "temperatur"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 10**6}}, "limit"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_is_wrong_is_400_with_the_reason(
    smollm: Cluster, body: dict[str, Any], reason: str
) -> None:
    status, answer = post(f"{smollm.lb}/generate", body)
    assert status == 400
    assert reason in answer["error"]["message"]


def test_an_abort_by_id_ends_the_request_on_both_sides(smollm: Cluster) -> None:
    body = {"text": TEXT, "rid": "to-be-ended", "sampling_params": {**GREEDY}}
    body["sampling_params"]["max_new_tokens"] = 2000
    answers: list[Any] = []
    asked = threading.Thread(target=lambda: answers.append(post(f"{smollm.lb}/generate", body)))
    asked.start()
    assert eventually(lambda: smollm.status("d0")["rooms"]["running"] == 1)
    assert post(f"{smollm.lb}/abort_request", {"rid": "to-be-ended"})[0] == 200
    asked.join(30)
    ((status, answer),) = answers
    assert (status, answer["error"]["cause"]) == (499, "client.cancelled")
    for instance in ("d0", "p0"):
        assert eventually(lambda name=instance: smollm.is_idle(name)), smollm.status(instance)

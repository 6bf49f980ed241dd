"""A decode that computes prompts by itself says what the pair says, and leaves nothing behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.live.test_tokens import LENGTHS, NEW, body, prompts, reference, whole
from tests.support.cluster import Cluster, eventually, kill, post
from tests.support.faults import SOON_S, Client, Right, arm, clear, prompt_of, rooms_in
from tests.support.faults import body as greedy
from tests.support.stages import POOL_PAGES

pytestmark = pytest.mark.live


def alone(cluster: Cluster, asked: dict[str, Any], path: str = "/generate") -> tuple[int, Any]:
    """Ask a decode directly, as a balancer does that has no prefill."""
    return post(f"{cluster.url('d0')}{path}", {**asked, "local_prefill": True})


def ids(cluster: Cluster, prompt: list[int], new: int = NEW) -> list[int]:
    status, answer = alone(cluster, body(prompt, new, stream=False))
    assert status == 200, answer
    said: list[int] = answer["output_ids"]
    return said


def test_a_decode_alone_says_what_transformers_says(tiny: tuple[str, Cluster]) -> None:
    model_dir, cluster = tiny
    asked = prompts(320, LENGTHS, seed=3)
    expected = reference(model_dir, asked, NEW)
    assert [ids(cluster, prompt) for prompt in asked] == expected
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda prompt: ids(cluster, prompt), [*asked, *asked]))
    assert said == [*expected, *expected]


def test_rooms_with_and_without_a_prefill_share_their_steps(tiny: tuple[str, Cluster]) -> None:
    model_dir, cluster = tiny
    asked = prompts(320, LENGTHS, seed=4)
    expected = reference(model_dir, asked, NEW)
    with ThreadPoolExecutor(16) as pool:
        ways = [whole, ids] * len(asked)
        said = list(pool.map(lambda n: ways[n](cluster, asked[n // 2]), range(2 * len(asked))))
    assert said == [text for text in expected for _ in range(2)]
    assert eventually(lambda: cluster.is_idle("d0"))
    assert eventually(lambda: cluster.is_idle("p0"))


def test_sampled_texts_and_log_probabilities_are_those_of_the_pair(
    tiny: tuple[str, Cluster],
) -> None:
    _, cluster = tiny
    sampling = {"temperature": 1.0, "max_new_tokens": 20, "seed": 7}
    wishes = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    asked = {"input_ids": prompts(320, (77,), seed=5)[0], "sampling_params": sampling, **wishes}
    status, split = post(f"{cluster.lb}/generate", asked)
    assert status == 200, split
    status, own = alone(cluster, asked)
    assert status == 200, own
    assert own["output_ids"] == split["output_ids"]
    for name in ("input_token_logprobs", "output_token_logprobs"):
        numbers = [[pair[0] for pair in answer["meta_info"][name]] for answer in (own, split)]
        if name.startswith("input"):
            assert [some.pop(0) for some in numbers] == [None, None]  # before it there is nothing
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)  # the row has them in fp32


def test_openai_clients_may_speak_to_a_decode_alone(tiny: tuple[str, Cluster]) -> None:
    _, cluster = tiny
    asked = {"prompt": prompts(320, (5, 9), seed=6), "max_tokens": 4, "temperature": 0}
    status, own = post(f"{cluster.url('d0')}/v1/completions", asked)  # nothing names a prefill
    assert status == 200, own
    _, split = post(f"{cluster.lb}/v1/completions", asked)
    texts = [[choice["text"] for choice in answer["choices"]] for answer in (own, split)]
    assert texts[0] == texts[1]


def test_its_story_has_a_forward_on_decode_and_no_prefill(tiny: tuple[str, Cluster]) -> None:
    _, cluster = tiny
    asked = {**body([5, 6, 7] * 20, 4, stream=False), "bootstrap_room": 4711}
    status, answer = alone(cluster, asked)
    assert (status, answer["meta_info"]["bootstrap_room"]) == (200, 4711)
    told = cluster.pdctl("trace", "room", f"{4711:014x}")
    assert told.returncode == 0, told.stderr
    assert "d.forward" in told.stdout
    assert "2 chunks" in told.stdout
    assert "d.transfer" not in told.stdout


# --- faults -----------------------------------------------------------------------------------


def in_forward(cluster: Cluster, new: int = 8, *, stream: bool = False) -> Client:
    """Send a long prompt to a slow decode; it is being computed when this returns."""
    arm(cluster, "d0", "engine.delay", seconds=0.1, times=0)
    asked = {**greedy(prompt_of(200, 2), new, stream=stream), "local_prefill": True}
    client = Client(f"{cluster.url('d0')}/generate", asked)
    assert eventually(lambda: rooms_in(cluster, "d0", "forward") == 1, 10)
    return client


def test_a_client_that_leaves_a_forward_leaves_nothing_behind(pair: Cluster) -> None:
    in_forward(pair).leave()
    assert eventually(lambda: pair.is_idle("d0"), SOON_S)


def test_a_client_that_leaves_a_running_text_leaves_nothing_behind(pair: Cluster) -> None:
    client = in_forward(pair, new=300, stream=True)
    assert eventually(lambda: rooms_in(pair, "d0", "running") == 1)
    client.leave()
    assert eventually(lambda: pair.is_idle("d0"), SOON_S)


def test_a_dead_prefill_is_not_missed(pair: Cluster, right: Right) -> None:
    client = in_forward(pair)
    for pid in pair.daemon_pids("p0"):
        kill(pid)
    clear(pair, "d0")
    assert client.end().ids == right.ids(prompt_of(200, 2))


def test_a_decode_that_dies_in_a_forward_says_so(pair: Cluster) -> None:
    client = in_forward(pair)
    kill(pair.daemon_pids("d0")[-1])
    ended = client.end()
    assert ended.status >= 500
    assert ended.error is not None
    assert ended.error["peer"] == "d0", ended.error


@pytest.mark.parametrize("fault", ["engine.raise", "engine.reject"])
def test_a_forward_that_breaks_is_told_with_its_stage(pair: Cluster, fault: str) -> None:
    arm(pair, "d0", fault)
    status, answer = alone(pair, greedy(prompt_of(40), 4))
    assert (status, answer["error"]["stage"]) == (500, "forward"), answer
    assert eventually(lambda: pair.is_idle("d0"), SOON_S)


def test_it_has_no_place_where_no_page_is_free_and_is_told_in_time(pair: Cluster) -> None:
    arm(pair, "d0", "pages.shrink", amount=POOL_PAGES)
    arm(pair, "d0", "deadlines.scale", amount=0.05)
    status, answer = alone(pair, greedy(prompt_of(40), 4))
    assert (status, answer["error"]["cause"]) == (503, "queue.timeout"), answer

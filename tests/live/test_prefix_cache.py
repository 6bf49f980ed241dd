"""Prompts that begin like earlier texts: the same words, less to compute, and less on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from daemons.protocol.metadata import ROW_BYTES
from tests.live.conftest import SMALL
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, post, running
from tests.support.faults import Right, ask, prompt_of, rooms_left

pytestmark = pytest.mark.live

PAGE, TURNS, NEW, ASKED = 16, 10, 12, 21
POOL_TOKENS = 640
CHATS = 8


def cluster_of(folder: Path, on: dict[str, bool]) -> Any:
    workers = {
        role: {name: {"prefix_cache": on[name]}}
        for role, name in (("prefill", "p0"), ("decode", "d0"))
    }
    engine = {**SMALL, "threads": 1, "kv_tokens": POOL_TOKENS}
    return running(folder, str(checkpoint("llama")), engine=engine, **workers)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A pair that remembers, in pools of 40 pages."""
    with cluster_of(tmp_path_factory.mktemp("cached"), {"p0": True, "d0": True}) as cluster:
        yield cluster


def counter(cluster: Cluster, instance: str, name: str) -> float:
    assert eventually(lambda: rooms_left(cluster, instance) == 0)
    value: float = cluster.status(instance)["counters"].get(name, 0.0)
    return value


def sent(cluster: Cluster) -> int:
    return int(counter(cluster, "p0", "sent_bytes"))


def answer(cluster: Cluster, prompt: list[int], salt: str = "", **wishes: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True, **wishes}
    body = {"input_ids": prompt, "sampling_params": sampling, "cache_salt": salt}
    status, said = post(f"{cluster.lb}/generate", body)
    assert status == 200, said
    found: dict[str, Any] = said
    return found


def chat(cluster: Cluster, seed: int, turns: int, **more: Any) -> Iterator[tuple[list[int], Any]]:
    """Talk, each turn over all that was said before; yields what was asked and the answer."""
    prompt: list[int] = []
    for turn in range(turns):
        prompt = [*prompt, *prompt_of(ASKED, 1000 * seed + turn)]
        said = answer(cluster, prompt, **more)
        yield prompt, said
        prompt = [*prompt, *said["output_ids"]]


def test_of_a_chat_only_what_is_new_is_computed_and_travels(cached: Cluster, right: Right) -> None:
    before = sent(cached)
    answer(cached, prompt_of(PAGE, 77), salt="measure")
    page_bytes = sent(cached) - before - ROW_BYTES
    known = 0  # tokens of the chat whose KV decode has
    before_prompt = 0
    for prompt, said in chat(cached, 1, TURNS, salt="one"):
        assert said["output_ids"] == right.ids(prompt, NEW)
        cached_tokens = min(before_prompt, len(prompt) - 1) // PAGE * PAGE
        assert said["meta_info"]["cached_tokens"] == cached_tokens
        pages = -(-len(prompt) // PAGE) - known // PAGE
        assert sent(cached) - before - page_bytes - ROW_BYTES == pages * page_bytes + ROW_BYTES
        before = sent(cached) - page_bytes - ROW_BYTES
        before_prompt, known = len(prompt), len(prompt) + NEW - 1
    print(f"{TURNS} turns, {page_bytes} bytes a page: each sent its new pages and its row")


@pytest.mark.parametrize("wishes", [{}, {"temperature": 1.0, "sampling_seed": 5}], ids=str)
def test_texts_are_the_same_with_and_without_what_is_cached(
    cached: Cluster, wishes: dict[str, Any]
) -> None:
    over = list(chat(cached, 2, 4, salt="same", **wishes))
    assert over[-1][1]["meta_info"]["cached_tokens"] > 0
    for turn, (prompt, said) in enumerate(over):
        alone = answer(cached, prompt, salt=f"alone {turn} {wishes}", **wishes)
        assert alone["meta_info"]["cached_tokens"] == 0
        assert alone["output_ids"] == said["output_ids"]


def test_texts_are_right_when_more_is_said_than_can_be_kept(cached: Cluster, right: Right) -> None:
    evicted = counter(cached, "p0", "cache_evictions"), counter(cached, "d0", "cache_evictions")
    hits = counter(cached, "d0", "cached_tokens")

    def talk(seed: int) -> list[tuple[list[int], Any]]:
        return list(chat(cached, seed, 5))

    with ThreadPoolExecutor(4) as pool:
        for said in pool.map(talk, range(10, 10 + CHATS)):
            for prompt, one in said:
                assert one["output_ids"] == right.ids(prompt, NEW)
    assert counter(cached, "p0", "cache_evictions") > evicted[0]
    assert counter(cached, "d0", "cache_evictions") > evicted[1]
    assert counter(cached, "d0", "cached_tokens") > hits
    for instance in ("p0", "d0"):
        assert eventually(lambda name=instance: cached.is_idle(name))  # type: ignore[misc]


def test_a_client_that_leaves_takes_nothing_of_what_others_read(
    cached: Cluster, right: Right
) -> None:
    prompt = prompt_of(100, 5)
    answer(cached, prompt)
    for stream in (True, False):
        leaver = ask(cached, prompt, 60, stream=stream)
        stayer = ask(cached, prompt, NEW)
        leaver.leave()
        assert stayer.end().ids == right.ids(prompt, NEW)
    for instance in ("p0", "d0"):
        assert eventually(lambda name=instance: cached.is_idle(name))  # type: ignore[misc]


def test_usage_metrics_and_trace_tell_what_was_cached(cached: Cluster) -> None:
    prompt = prompt_of(50, 6)
    answer(cached, prompt, salt="told")
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "cache_salt": "told"}
    status, said = post(f"{cached.lb}/v1/completions", body)
    assert status == 200, said
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    again = answer(cached, prompt, salt="told")
    room = f"{again['meta_info']['bootstrap_room']:014x}"
    shown = cached.pdctl("trace", "room", room).stdout
    assert "prompt 50 (48 cached)" in shown, shown


@pytest.mark.long
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("prefill", [True, False])
def test_each_side_may_remember_or_not(
    *, tmp_path: Path, right: Right, prefill: bool, decode: bool
) -> None:
    with cluster_of(tmp_path, {"p0": prefill, "d0": decode}) as cluster:
        for seed in range(3):
            for prompt, said in chat(cluster, seed, 4):
                assert said["output_ids"] == right.ids(prompt, NEW)
                assert (said["meta_info"]["cached_tokens"] > 0) is (prefill and len(prompt) > ASKED)
        assert (counter(cluster, "d0", "cached_tokens") > 0) is decode
        assert (counter(cluster, "p0", "cached_tokens") > 0) is prefill

"""More text than decode has pages for: rooms leave the batch, come back, and nobody can tell."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import SMALL
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, events, eventually, post, running

pytestmark = pytest.mark.live

ROOMS, NEW = 12, 120
ROUNDS = 5  # on a busy host clients may come one after the other, and need not meet
POOL_TOKENS = 512  # of which each room needs some 160 in the end
GREEDY = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
DRAWN = {**GREEDY, "temperature": 1.0, "seed": 11}


def said(cluster: Cluster, body: dict[str, Any]) -> list[int]:
    status, answer = post(f"{cluster.lb}/generate", body)
    assert status == 200, answer
    ids: list[int] = answer["output_ids"]
    return ids


def retractions(cluster: Cluster) -> float:
    count: float = cluster.status("d0")["counters"].get("retractions", 0.0)
    return count


@pytest.fixture(scope="module")
def squeezed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A decode with a pool for three whole rooms, and a host that may keep a dozen."""
    folder: Path = tmp_path_factory.mktemp("squeezed")
    engine = {**SMALL, "threads": 1, "kv_tokens": 8192}
    decode = {"d0": {"retract_tokens": 2048, "engine": {**engine, "kv_tokens": POOL_TOKENS}}}
    with running(folder, str(checkpoint("llama")), engine=engine, decode=decode) as cluster:
        yield cluster


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "sampled"])
def test_retracted_texts_are_the_undisturbed_ones(
    squeezed: Cluster, sampling: dict[str, Any]
) -> None:
    bodies = [
        {"input_ids": [3 + n] * (5 + 3 * n), "sampling_params": sampling} for n in range(ROOMS)
    ]
    undisturbed = [said(squeezed, body) for body in bodies]
    assert [len(ids) for ids in undisturbed] == [NEW] * ROOMS
    before = retractions(squeezed)
    with ThreadPoolExecutor(ROOMS) as pool:
        together = list(pool.map(lambda body: said(squeezed, body), bodies))
    assert together == undisturbed
    assert retractions(squeezed) > before
    assert eventually(lambda: squeezed.is_idle("d0"))


def test_clients_that_leave_while_rooms_are_retracted_leave_nothing_behind(
    squeezed: Cluster,
) -> None:
    def leave_after(n: int) -> None:
        body = {"input_ids": [3 + n] * 20, "sampling_params": GREEDY, "stream": True}
        stream = events(f"{squeezed.lb}/generate", body)
        for _, event in zip(range(NEW - 2 * ROOMS + 2 * n), stream, strict=False):
            assert event == "[DONE]" or "error" not in json.loads(event)
        stream.close()  # type: ignore[attr-defined]

    before = retractions(squeezed)
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(ROOMS) as pool:
            list(pool.map(leave_after, range(ROOMS)))
        if retractions(squeezed) > before:
            break
    assert retractions(squeezed) > before
    assert eventually(lambda: squeezed.is_idle("d0"))
    assert eventually(lambda: squeezed.is_idle("p0"))

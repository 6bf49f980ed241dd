"""The phone book freezes: running texts do not notice, known pairs serve on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import CHAOS
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, running
from tests.support.faults import Client, Right, arm, ask, frozen, is_clean, prompt_of

pytestmark = pytest.mark.live
STEP_S = 0.02
NEW = 100
PAUSE_RATIO = 10.0  # of the longest gap before; a wait for the book would be hundreds of steps
LOOP_LAG_S = 0.5  # far below every deadline of a call to the book


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two decodes, of which one pair is made while the book is frozen."""
    folder: Path = tmp_path_factory.mktemp("book")
    with running(folder, str(checkpoint("llama")), **CHAOS) as cluster:
        yield cluster


def gaps(client: Client, right: Right, prompt: list[int]) -> list[float]:
    ended = client.end()
    assert ended.error is None, ended
    assert is_clean(ended, right.ids(prompt, NEW)), ended
    return ended.gaps_s


def lags(cluster: Cluster) -> dict[str, float]:
    """Return the longest time by which each rank's loop has been late."""
    return {n: cluster.status(n)["loop_lag_max_s"] for n in ("p0", "d0")}


def test_no_token_waits_for_a_frozen_phone_book(cluster: Cluster, right: Right) -> None:
    prompts = [prompt_of(20 + n, 50) for n in range(3)]
    for prompt in prompts:
        right.ids(prompt, NEW)
    arm(cluster, "d0", "engine.delay", seconds=STEP_S, times=0)
    before = gaps(ask(cluster, prompts[0], NEW, stream=True), right, prompts[0])
    client = ask(cluster, prompts[1], NEW, stream=True)
    assert eventually(lambda: cluster.status("d0")["rooms"]["running"] == 1, 10)
    lag_s = lags(cluster)
    workers = {name: cluster.url(name) for name in ("p0", "d0")}
    with frozen(cluster.daemon_pids("bootstrap")):
        during = gaps(client, right, prompts[1])
        new = gaps(ask(cluster, prompts[2], NEW, stream=True), right, prompts[2])
    for name, measured in (("a running room", during), ("a new room", new)):
        ratio = max(measured) / max(before)
        middle = statistics.median(measured) / statistics.median(before)
        print(
            f"frozen phone book, {name}: longest gap {ratio:.2f} x, median {middle:.2f} x"
            f" that before"
        )
        assert max(measured) < max(PAUSE_RATIO * max(before), LOOP_LAG_S)
        assert middle < 3
    assert eventually(lambda: {n: cluster.url(n) for n in workers} == workers, 20)
    for name, late_s in lags(cluster).items():
        print(f"{name}: its loop was late by at most {late_s:.4f} s, {lag_s[name]:.4f} s before")
        assert late_s < max(PAUSE_RATIO * lag_s[name], LOOP_LAG_S)

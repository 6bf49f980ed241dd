"""Real daemons die in the middle of a request; nobody waits and nobody else is restarted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, events, eventually, kill, post, running

pytestmark = pytest.mark.live
WITHIN_S = 10.0
CAUSES_OF_A_DEATH = ("peer.died", "lb.worker_gone", "instance.stopping", "transfer.failed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Long prompts take many small steps, so that there is a middle to be killed in."""
    engine = {"chunk_tokens": 1, "batch_tokens": 1, "dtype": "fp32", "kv_tokens": 4096}
    folder: Path = tmp_path_factory.mktemp("faults")
    with running(folder, str(checkpoint("llama")), engine=engine) as cluster:
        yield cluster


def long_prompt() -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    return {"input_ids": [5] * 480, "sampling_params": sampling}


def short_prompt(new: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    return {"input_ids": [5, 6, 7], "sampling_params": sampling}


def in_background(cluster: Cluster, body: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def ask() -> None:
        answers.append((*post(f"{cluster.lb}/generate", body), time.monotonic()))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def forwarding(cluster: Cluster) -> bool:
    return bool(cluster.status("p0")["rooms"]["forward"])


def epochs(cluster: Cluster) -> dict[str, int]:
    return {name: row["epoch"] for name, row in cluster.instances().items()}


def serves(cluster: Cluster) -> bool:
    return post(f"{cluster.lb}/generate", short_prompt(3))[0] == 200


@pytest.mark.parametrize("process", ["front", "rank"])
@pytest.mark.parametrize("victim", ["p0", "d0"])
def test_a_kill_in_the_middle_of_a_request_costs_that_request_only(
    cluster: Cluster, victim: str, process: str
) -> None:
    survivor = "d0" if victim == "p0" else "p0"
    assert eventually(lambda: serves(cluster)), "not serving before the kill"
    before = epochs(cluster)
    pids = cluster.daemon_pids(victim)
    assert len(pids) == 2
    thread, answers = in_background(cluster, long_prompt())
    assert eventually(lambda: forwarding(cluster)), "the request never came to its forward"
    killed_s = time.monotonic()
    kill(pids[0 if process == "front" else 1])
    thread.join(WITHIN_S + 5)
    assert answers, "the client still waits"
    status, answer, ended_s = answers[0]
    error = answer["error"]
    assert ended_s - killed_s < WITHIN_S
    assert status >= 500
    assert error["room"]
    assert error["stage"]
    assert error["peer"] == victim, error
    assert error["cause"] in CAUSES_OF_A_DEATH, error
    assert eventually(lambda: cluster.is_idle(survivor)), cluster.status(survivor)
    assert eventually(lambda: serves(cluster), 60), "not serving after the restart"
    after = epochs(cluster)
    assert after[victim] != before[victim]
    assert {n: e for n, e in after.items() if n != victim} == {
        n: e for n, e in before.items() if n != victim
    }


def test_a_kill_of_decode_in_a_stream_ends_it_with_an_error_and_no_done(cluster: Cluster) -> None:
    assert eventually(lambda: serves(cluster), 60)
    stream = events(f"{cluster.lb}/generate", {**short_prompt(300), "stream": True})
    next(stream)
    kill(cluster.daemon_pids("d0")[1])
    rest = list(stream)
    assert rest[-1] != "[DONE]"
    error = json.loads(rest[-1])["error"]
    assert error["peer"] == "d0"
    assert error["room"]
    assert error["cause"] in ("lb.worker_gone", "instance.stopping")
    assert eventually(lambda: serves(cluster), 60)


def test_a_restart_of_the_phone_book_is_not_noticed_by_a_running_pair(cluster: Cluster) -> None:
    assert eventually(lambda: serves(cluster), 60)
    before = {n: e for n, e in epochs(cluster).items() if n != "bootstrap"}
    (book,) = cluster.daemon_pids("bootstrap")
    kill(book)
    assert serves(cluster)  # the pair knows each other, pd-lb keeps its last view

    def healed() -> bool:
        try:
            return {n: e for n, e in epochs(cluster).items() if n != "bootstrap"} == before
        except (OSError, KeyError):
            return False

    assert eventually(healed, 20)
    assert serves(cluster)

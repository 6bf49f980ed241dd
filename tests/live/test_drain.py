"""Leaving is told first, rooms finish, and nobody sees it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import write_checkpoint
from tests.support.cluster import Cluster, eventually, post, running

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two of each, so that one may leave."""
    folder: Path = tmp_path_factory.mktemp("drain")
    engine = {"dtype": "fp32", "kv_tokens": 16384, "chunk_tokens": 16, "batch_tokens": 16}
    pair = {"prefill": {"p0": {}, "p1": {}}, "decode": {"d0": {}, "d1": {}}}
    quick = {"lb": {"poll_s": 0.1, "attempts": 1}, "timers": {"notice_s": 0.4}}
    model = folder / "model"
    write_checkpoint(model, "llama", max_position_embeddings=16384)
    with running(folder, str(model), engine=engine, **pair, **quick) as cluster:
        yield cluster


def body(new: int, prompt: int = 20) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    return {"input_ids": list(range(5, 5 + prompt)), "sampling_params": sampling}


class Load:
    """Clients that ask again and again until they are told to stop."""

    def __init__(self, cluster: Cluster, clients: int = 4) -> None:
        self.answers: list[tuple[int, Any]] = []
        self._url = f"{cluster.lb}/generate"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            self.answers.append(post(self._url, body(12)))

    def end(self) -> list[tuple[int, Any]]:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        return self.answers


@pytest.mark.parametrize("name", ["d0", "p0"])
def test_a_drain_under_load_loses_no_request_and_can_be_taken_back(
    cluster: Cluster, name: str
) -> None:
    expected = post(f"{cluster.lb}/generate", body(12))[1]["output_ids"]
    load = Load(cluster)
    assert eventually(lambda: len(load.answers) > 8)
    drained = cluster.pdctl("drain", name, "--yes")
    assert drained.returncode == 0, drained.stderr
    assert cluster.is_idle(name)
    before = cluster.status(name)["counters"].get("rooms_done", 0)
    count = len(load.answers)
    assert eventually(lambda: len(load.answers) > count + 20)
    assert cluster.status(name)["counters"].get("rooms_done", 0) == before
    undrained = cluster.pdctl("undrain", name)
    assert undrained.returncode == 0, undrained.stderr
    assert eventually(lambda: cluster.status(name)["counters"].get("rooms_done", 0) > before)
    answers = load.end()
    assert {status for status, _ in answers} == {200}, [a for s, a in answers if s != 200][:3]
    assert all(answer["output_ids"] == expected for _, answer in answers)


def test_a_drain_waits_for_a_long_room_and_force_ends_it(cluster: Cluster) -> None:
    answers: list[tuple[int, Any]] = []
    asked = threading.Thread(
        target=lambda: answers.append(post(f"{cluster.lb}/generate", body(15000)))
    )
    asked.start()

    def runner() -> str:
        return next((n for n in ("d0", "d1") if cluster.status(n)["rooms"]["running"]), "")

    name = eventually(runner)
    assert name, "the room never ran"
    forced = cluster.pdctl("drain", name, "--yes", "--deadline", "0.2", "--force")
    assert forced.returncode == 0, forced.stderr
    asked.join(20)
    ((status, answer),) = answers
    if status == 200:
        pytest.fail("the room ended before it was forced: make it longer")
    assert answer["error"]["cause"] == "instance.draining"
    assert answer["error"]["peer"] == name
    assert eventually(lambda: cluster.is_idle(name))
    assert cluster.pdctl("undrain", name).returncode == 0


def test_sigterm_finishes_the_rooms_and_ends_with_0(cluster: Cluster) -> None:
    load = Load(cluster)
    assert eventually(lambda: len(load.answers) > 8)
    (front, *_) = cluster.daemon_pids("d1")
    os.kill(front, signal.SIGTERM)
    assert eventually(lambda: not cluster.daemon_pids("d1"), 30)
    count = len(load.answers)
    assert eventually(lambda: len(load.answers) > count + 20)
    answers = load.end()
    assert {status for status, _ in answers} == {200}, [a for s, a in answers if s != 200][:3]
    assert "d1" not in cluster.instances()

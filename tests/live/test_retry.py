"""What pd-lb makes up for: kills that nobody was told of, prefills that are gone, a token's way."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons.protocol.ids import room_hex
from tests.live.conftest import CHAOS
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, get, kill, running
from tests.support.faults import Ended, Right, arm, ask, clear, healthy, prompt_of, rooms_in

pytestmark = pytest.mark.live
BACK_S = 120.0
NEW = 12


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two of each; decodes may compute prompts where no prefill is left."""
    sections = {
        **CHAOS,
        "lb": {"poll_s": 5, "retry_wait_s": 30, "local_prefill": "when_alone"},
        "prefill": {"p0": {}, "p1": {}},
        "decode": {"d0": {}, "d1": {}},
    }
    folder: Path = tmp_path_factory.mktemp("retry")
    with running(folder, str(checkpoint("llama")), **sections) as cluster:
        yield cluster


@pytest.fixture
def cluster(built: Cluster, right: Right) -> Iterator[Cluster]:
    workers = ("p0", "p1", "d0", "d1")
    healthy(built, right, within_s=BACK_S, workers=workers)
    yield built
    clear(built, *workers)
    healthy(built, right, within_s=BACK_S, workers=workers)


class Load:
    """Clients that ask for whole answers again and again until they are told to stop."""

    def __init__(self, cluster: Cluster, clients: int = 4) -> None:
        self.ends: list[Ended] = []
        self.prompt = prompt_of(30, 5)
        self._cluster = cluster
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            self.ends.append(ask(self._cluster, self.prompt, NEW).end())

    def end(self) -> list[Ended]:
        self._stop.set()
        for thread in self._threads:
            thread.join(BACK_S)
        return self.ends


@pytest.mark.parametrize(("victim", "process"), [("p0", 0), ("d0", -1)], ids=["p0", "d0-rank"])
def test_a_kill_under_load_costs_no_request_that_nothing_was_sent_of(
    cluster: Cluster, right: Right, victim: str, process: int
) -> None:
    load = Load(cluster)
    assert eventually(lambda: len(load.ends) > 8)
    kill(cluster.daemon_pids(victim)[process])
    count = len(load.ends)
    assert eventually(lambda: len(load.ends) > count + 20, BACK_S)
    expected = right.ids(load.prompt, NEW)
    ends = load.end()
    assert [end.error for end in ends if end.error] == []
    assert all(end.ids == expected for end in ends)


def test_a_request_that_was_tried_again_tells_so_in_its_story(
    cluster: Cluster, right: Right
) -> None:
    for name in ("p0", "p1"):
        arm(cluster, name, "write.fail")
    prompt = prompt_of(24, 7)
    ended = ask(cluster, prompt).end()
    assert ended.ids == right.ids(prompt)
    room = ended.answer["meta_info"]["bootstrap_room"]
    (story,) = get(f"{cluster.lb}/rooms/{room_hex(room)}")["stories"]
    assert story["attempt"] > 1
    (before,) = get(f"{cluster.lb}/rooms/{story['facts']['retry_of']}")["stories"]
    assert before["failure"]["cause"] == "transfer.failed"
    assert before["attempt"] == story["attempt"] - 1
    told = cluster.pdctl("trace", "room", room_hex(room)).stdout
    assert "least rooms" in told


def test_a_stream_begins_with_prefills_token_and_goes_on_without_a_seam(
    cluster: Cluster, right: Right
) -> None:
    for name in ("p0", "p1"):
        arm(cluster, name, "write.freeze", seconds=0, times=1)
    prompt = prompt_of(24, 8)
    first, rest = threading.Event(), list[bytes]()

    def read() -> None:
        body = b'{"input_ids":%s,"stream":true,"sampling_params":%s}' % (
            str(prompt).encode(),
            b'{"temperature":0,"max_new_tokens":8,"ignore_eos":true}',
        )
        asked = urllib.request.Request(f"{cluster.lb}/generate", body)
        with urllib.request.urlopen(asked, timeout=BACK_S) as answer:
            rest.append(answer.readline())
            first.set()
            rest.extend(answer)

    reading = threading.Thread(target=read)
    reading.start()
    assert first.wait(20), "the write stands still, and the first token waits for it"
    assert sum(rooms_in(cluster, name, "transfer") for name in ("d0", "d1")) == 1
    clear(cluster, "p0", "p1")
    reading.join(BACK_S)
    events = [line[6:].strip() for line in rest if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    expected = right.ids(prompt)
    told = [json.loads(event)["output_ids"] for event in events]
    assert told == [expected[: n + 1] for n in range(8)], "each token once, in order"
    with urllib.request.urlopen(f"{cluster.lb}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    for leg in ("prefill", "decode"):
        assert f'pd_lb_first_token_seconds_count{{leg="{leg}"}}' in metrics


def test_without_a_prefill_decode_serves_and_who_comes_back_is_seen_at_once(
    cluster: Cluster, right: Right
) -> None:
    prompt = prompt_of(24, 9)
    for name in ("p0", "p1"):
        assert cluster.pdctl("drain", name, "--yes").returncode == 0
    assert eventually(lambda: not _is_split(cluster, right, prompt), 20)
    for name in ("d0", "d1"):
        assert cluster.pdctl("drain", name, "--yes").returncode == 0
    assert eventually(lambda: ask(cluster, prompt).end().status == 503, 20)
    for name in ("p0", "d0"):
        assert cluster.pdctl("undrain", name).returncode == 0
    ended = ask(cluster, prompt).end()
    assert ended.ids == right.ids(prompt), "the fleet is looked at before a refusal"
    for name in ("p1", "d1"):
        assert cluster.pdctl("undrain", name).returncode == 0


def _is_split(cluster: Cluster, right: Right, prompt: list[int]) -> bool:
    """Ask once; say whether a prefill had a part in it."""
    ended = ask(cluster, prompt).end()
    assert ended.ids == right.ids(prompt), ended
    room = ended.answer["meta_info"]["bootstrap_room"]
    (story,) = get(f"{cluster.lb}/rooms/{room_hex(room)}")["stories"]
    return bool(story["facts"]["prefill"])

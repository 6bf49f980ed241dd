"""Every worker is replaced under load, and no request is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.cluster import post, running

pytestmark = pytest.mark.live
CLIENTS = 4
PAUSE_S = 0.05  # of each, so that those who start have a processor
ASK = {"prompt": "a rolling restart", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def test_a_rolling_restart_loses_no_request(tmp_path: Path) -> None:
    workers = {"prefill": {"p0": {}, "p1": {}}, "decode": {"d0": {}, "d1": {}}}
    engine = {"threads": 1, "kv_tokens": 4096, "page_size": 16, "dtype": "fp32"}
    timers = {"drain_s": 20, "notice_s": 1.0}
    with running(
        tmp_path, str(checkpoint("llama")), engine=engine, timers=timers, **workers
    ) as cluster:
        before = {name: row["epoch"] for name, row in cluster.instances().items()}
        enough = threading.Event()
        answers: list[tuple[int, str]] = []

        def ask() -> None:
            while not enough.is_set():
                status, body = post(f"{cluster.lb}/v1/completions", {"model": "x", **ASK})
                text = body["choices"][0]["text"] if status == 200 else str(body)
                answers.append((status, text))
                enough.wait(PAUSE_S)

        asking = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for thread in asking:
            thread.start()
        try:
            done = cluster.pdctl("restart", "--rolling", "--yes", within_s=240)
        finally:
            enough.set()
            for thread in asking:
                thread.join(60)
        assert done.returncode == 0, done.stderr
        after = {name: row["epoch"] for name, row in cluster.instances().items()}
        assert {name for name in after if after[name] != before[name]} == {"p0", "p1", "d0", "d1"}
        assert len(answers) > CLIENTS
        assert set(answers) == {(200, answers[0][1])}
        print(f"{len(answers)} requests while four workers were replaced, none lost")

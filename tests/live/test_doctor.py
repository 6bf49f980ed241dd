"""A write over every pair of real daemons, verified; and one that must not pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.checkpoints import checkpoint
from tests.support.cluster import post, running

pytestmark = pytest.mark.live


def test_every_pair_is_written_over_and_verified(tmp_path: Path) -> None:
    engine = {"threads": 1, "kv_tokens": 4096, "page_size": 16, "dtype": "fp32", "chunk_tokens": 64}
    workers = {"decode": {"d0": {}, "d1": {}}}
    lb = {"port": 0, "poll_s": 0.2}
    with running(
        tmp_path, str(checkpoint("llama")), engine=engine, chaos=True, lb=lb, **workers
    ) as cluster:
        done = cluster.pdctl("doctor", "-o", "json")
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        for pair in ("pair-p0-d0", "pair-p0-d1"):
            assert found[pair]["status"] == "ok", found[pair]
            assert found[pair]["value"].startswith("verified")
            assert found[pair]["bytes_per_s"] > 0
        for name in ("clock-p0", "inbox-d0", "file-d1", "reach-lb"):
            assert found[name]["status"] == "ok", found[name]

        post(f"{cluster.url('p0')}/drain", {"on": True})
        done = cluster.pdctl("check", "pair-p0-d0", "--nagios")
        assert done.returncode == 2, done.stdout
        assert done.stdout.startswith("PD CRITICAL - pair-p0-d0: ")
        events = json.loads(cluster.pdctl("events", "-o", "json").stdout)["events"]
        assert [event["subject"] for event in events if event["kind"] == "draining"] == ["p0"]

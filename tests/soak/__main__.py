"""``python -m tests.soak --minutes N``: a cluster under mixed load and faults, watched for growth.

Two prefills and two decodes serve clients that ask whole and streamed, leave in the middle, and
sometimes name a deadline. p1 and d1 are killed, anybody may be frozen. It fails on a wrong text,
on a request without an end, on a pool that is not back, and on growth of memory, descriptors or
threads in those that were never killed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.clients import Clients
from tests.soak.faults import Faults
from tests.soak.growth import Growth
from tests.support.checkpoints import write_checkpoint
from tests.support.cluster import Cluster, eventually, running

WORKERS = ("p0", "p1", "d0", "d1")
TELL_S = 15.0
QUIET_S = 90.0  # after the last fault: restarts, quarantines and tombstones end within


def main() -> int:
    """Run the soak and print its table; returns 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    flags = parser.parse_args()
    print(f"soak: {flags.minutes:g} minutes, {flags.clients} clients, seed {flags.seed}")
    with tempfile.TemporaryDirectory(prefix="pd-soak-") as folder:
        model = Path(folder) / "model"
        write_checkpoint(model, "llama", max_position_embeddings=1024)
        sections = {
            "engine": {"dtype": "fp32", "kv_tokens": 4096, "chunk_tokens": 32, "threads": 1},
            "timers": {"tombstone_s": 10, "lease_s": 3, "peer_timeout_s": 3, "progress_s": 10},
            "prefill": {"p0": {}, "p1": {}},
            "decode": {"d0": {}, "d1": {}},
        }
        with running(Path(folder), str(model), **sections) as cluster:
            return soak(cluster, flags.minutes * 60, flags.clients, flags.seed)


def soak(cluster: Cluster, seconds: float, clients: int, seed: int) -> int:
    """Load, break and watch for ``seconds``; returns how many things were wrong."""
    load = Clients(cluster, clients, seed)
    load.learn()
    growth = Growth(cluster)
    faults = Faults(cluster, seed, until_s=time.monotonic() + seconds * 0.9)
    load.start()
    faults.start()
    end_s, told_s = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end_s:
        growth.sample()
        time.sleep(min(1.0, max(0.2, seconds / 200)))
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            print(f"soak: {load.summary()}; {faults.summary()}", flush=True)
    faults.stop()
    load.stop()
    wrong = load.wrong()
    for name in WORKERS:
        if not eventually(lambda one=name: cluster.is_idle(one), QUIET_S):
            wrong.append(f"{name} is not back at idle pools")
    wrong += growth.wrong()
    print(f"soak: {load.summary()}; {faults.summary()}\n{load.table()}\n{growth.table()}")
    for line in wrong:
        print(f"soak: WRONG: {line}")
    print(f"soak: {'failed' if wrong else 'passed'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

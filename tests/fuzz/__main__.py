"""``python -m tests.fuzz --seconds N``: spoiled requests and messages at a whole cluster.

Fails when a process dies or is replaced, when memory or descriptors grow without bound, when a
request breaks in a way that nobody expected, or when the cluster no longer says what it said.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import zmq

from daemons.cluster.key import make_key
from daemons.protocol.ids import PeerId
from daemons.protocol.topology import Role
from daemons.runtime.guard import bearer
from tests.fuzz.http import BOOK, WORKER, Caller
from tests.fuzz.zmq import Sender
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, get, post, running

DAEMONS = ("bootstrap", "p0", "d0", "lb")
GROWTH_BYTES = 160 << 20  # of one process: its rings of stories and tombstones may fill
GROWTH_FDS = 80
CALLERS = 4  # at once, per daemon
ENGINE = {
    "chunk_tokens": 32,
    "batch_tokens": 64,
    "page_size": 16,
    "dtype": "fp32",
    "kv_tokens": 4096,
    "threads": 1,
}
PROBE = {"input_ids": [5, 6, 7, 8], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
BROKEN = ("request.broke", "rank.broke", "rank.died", "Traceback")


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    instance: str
    pid: int
    rss_bytes: int
    fds: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a fuzz."""

    seconds: float
    requests: int
    messages: int
    refused: dict[str, dict[str, int]]  # by rank and reason
    statuses: dict[str, Counter[str]]
    before: list[Process]
    after: list[Process]
    complaints: list[str]

    def lines(self) -> list[str]:
        """Return it for people."""
        told = [f"{self.seconds:.0f} s, {self.requests} requests, {self.messages} messages"]
        told += [f"  {name}: {dict(sorted(c.items()))}" for name, c in self.statuses.items()]
        told += [f"  {name} refused: {reasons}" for name, reasons in self.refused.items()]
        for old, new in zip(self.before, self.after, strict=False):
            grown = (new.rss_bytes - old.rss_bytes) / 2**20
            told.append(
                f"  {old.instance:9} pid {old.pid}: rss {old.rss_bytes / 2**20:.0f} MiB"
                f" {grown:+.1f} MiB, fds {old.fds} {new.fds - old.fds:+d}"
            )
        return told + [f"  WRONG: {one}" for one in self.complaints]


def processes(cluster: Cluster) -> list[Process]:
    """Return every process of a cluster."""
    return [
        Process(name, pid, _rss_bytes(pid), len(list(Path(f"/proc/{pid}/fd").iterdir())))
        for name in DAEMONS
        for pid in cluster.daemon_pids(name)
    ]


def fuzz(cluster: Cluster, seconds: float, seed: int) -> Summary:
    """Send spoiled requests and messages for so long, then look what has become of the cluster."""
    said = post(f"{cluster.lb}/generate", PROBE)[1]["output_ids"]
    before = processes(cluster)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    callers, senders = _callers(cluster, seed), _senders(cluster, context, seed)
    everybody: list[Caller | Sender] = [*callers, *senders]
    end_s = time.monotonic() + seconds
    with ThreadPoolExecutor(len(everybody)) as pool:
        for done in [pool.submit(_until, end_s, one.once) for one in everybody]:
            done.result()
    for one in everybody:
        one.close()
    context.destroy(linger=0)
    serves = eventually(lambda: _says(cluster, said), 60)
    idle = eventually(lambda: cluster.is_idle("p0") and cluster.is_idle("d0"), 90)
    after = processes(cluster)
    wrong = [*_grown(before, after), *_broken(cluster)]
    wrong += [] if serves else ["it no longer says what it said"]
    wrong += [] if idle else ["pages, rows or rooms were not given back"]
    statuses: dict[str, Counter[str]] = {}
    for caller in callers:
        statuses[caller.name] = statuses.get(caller.name, Counter()) + caller.statuses
    requests = sum(sum(one.values()) for one in statuses.values())
    sent = sum(sender.sent for sender in senders)
    refused = {name: _refused(cluster, name) for name in ("p0", "d0")}
    return Summary(seconds, requests, sent, refused, statuses, before, after, wrong)


def _callers(cluster: Cluster, seed: int) -> list[Caller]:
    bases = {name: cluster.url(name) for name in ("p0", "d0")}
    bases |= {"lb": cluster.lb, "bootstrap": cluster.book}
    return [
        Caller(
            name, base, BOOK if name == "bootstrap" else WORKER, random.Random(f"{seed}{name}{n}")
        )
        for name, base in bases.items()
        for n in range(CALLERS)
    ]


def _senders(cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]], seed: int) -> list[Sender]:
    epochs = {name: row["epoch"] for name, row in cluster.instances().items()}
    secret = cluster.key.plane if cluster.key else None
    pairs = (("p0", "d0"), ("d0", "p0"))
    return [
        Sender(
            context,
            inbox(cluster, name),
            PeerId(name, epochs[name]),
            PeerId(other, epochs[other]),
            secret,
            random.Random(f"{seed}zmq{name}"),
        )
        for name, other in pairs
    ]


def inbox(cluster: Cluster, instance: str) -> tuple[str, int]:
    """Return where a rank's inbox is."""
    ranks = "target_tp_rank=0&target_pp_rank=0&prefill_cp_rank=0&prefill_dp_rank=0"
    url = f"{cluster.book}/route?instance={instance}&{ranks}"
    row = get(url, headers=bearer(cluster.key, Role.BOOTSTRAP))
    return row["rank_ip"], row["rank_port"]


def _refused(cluster: Cluster, instance: str) -> dict[str, int]:
    counters = cluster.status(instance)["counters"]
    named = ((name.partition(":"), int(count)) for name, count in counters.items())
    return {why: count for (what, _, why), count in named if what == "messages_dropped"}


def _until(end_s: float, once: Callable[[], None]) -> None:
    while time.monotonic() < end_s:
        once()


def _says(cluster: Cluster, said: list[int]) -> bool:
    status, answer = post(f"{cluster.lb}/generate", PROBE)
    return status == 200 and answer["output_ids"] == said


def _grown(before: list[Process], after: list[Process]) -> list[str]:
    if [old.pid for old in before] != [new.pid for new in after]:
        return [f"processes were {before}, are {after}"]
    found = []
    for old, new in zip(before, after, strict=True):
        if new.rss_bytes - old.rss_bytes > GROWTH_BYTES:
            found.append(f"{old.instance} grew from {old.rss_bytes} to {new.rss_bytes} bytes")
        if new.fds - old.fds > GROWTH_FDS:
            found.append(f"{old.instance} had {old.fds} descriptors, has {new.fds}")
    return found


def _broken(cluster: Cluster) -> list[str]:
    lines = [
        f"{log.stem}: {line[:1000]}"
        for log in sorted(cluster.file.parent.rglob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if any(word in line for word in BROKEN)
    ]
    return lines[:5]


def _rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> int:
    """Bring a small cluster up, fuzz it, and print what came of it."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--key", action="store_true", help="a cluster with a key")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pd-fuzz-") as name:
        folder = Path(name)
        sections = {"key_file": "key"} if flags.key else {}
        if flags.key:
            make_key(folder / "key")
        with running(folder, str(checkpoint("llama")), engine=ENGINE, **sections) as cluster:
            summary = fuzz(cluster, flags.seconds, flags.seed)
    print(f"fuzz: seed {flags.seed}")
    print("\n".join(summary.lines()))
    return 1 if summary.complaints else 0


if __name__ == "__main__":
    sys.exit(main())

"""An idle cluster sleeps."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, eventually

pytestmark = [pytest.mark.live, pytest.mark.alone]
WATCHED_S = 10.0


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_cluster_uses_under_five_percent_of_one_core(smollm: Cluster) -> None:
    assert eventually(lambda: smollm.is_idle("p0") and smollm.is_idle("d0"))
    names = ("bootstrap", "p0", "d0", "lb")
    pids = [pid for name in names for pid in smollm.daemon_pids(name)]
    assert len(pids) == 6  # two of each worker
    before = sum(map(cpu_s, pids))
    time.sleep(WATCHED_S)
    used = (sum(map(cpu_s, pids)) - before) / WATCHED_S
    print(f"all daemons together: {100 * used:.2f} % of one core")
    assert used < 0.05

"""Memory, descriptors and threads of the processes that are never killed, over time."""

from __future__ import annotations

import contextlib
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cluster import Cluster

WATCHED = ("p0", "d0", "lb", "bootstrap")
# From the second third of the run to the last one a series may grow by this share plus this much.
ALLOWED = {"rss_mib": (0.05, 8.0), "fds": (0.05, 10.0), "threads": (0.0, 5.0)}


@dataclass
class Growth:
    """Samples of each process."""

    cluster: Cluster
    pids: dict[str, int] = field(default_factory=dict)
    series: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in WATCHED:
            for kind, pid in zip(("front", "rank"), self.cluster.daemon_pids(name), strict=False):
                self.pids[f"{name}/{kind}"] = pid

    def sample(self) -> None:
        """Take one sample of each."""
        for name, pid in self.pids.items():
            with contextlib.suppress(OSError):
                for what, value in _measure(pid).items():
                    self.series.setdefault((name, what), []).append(value)

    def wrong(self) -> list[str]:
        """Return the series that grew, and processes that are no more."""
        gone = [name for name, pid in self.pids.items() if not Path(f"/proc/{pid}").exists()]
        found = [f"{name} was never killed and is gone" for name in gone]
        for (name, what), values in self.series.items():
            before, after = _thirds(values)
            share, extra = ALLOWED[what]
            if after > before * (1 + share) + extra:
                found.append(f"{name}: {what} grew from {before:.0f} to {after:.0f}")
        return found

    def table(self) -> str:
        """Return begin, middle and end of each series."""
        rows = ["process           what      first  second third   last third"]
        for (name, what), values in sorted(self.series.items()):
            before, after = _thirds(values)
            rows.append(f"{name:17} {what:8} {values[0]:6.0f} {before:13.0f} {after:12.0f}")
        return "\n".join(rows)


def _measure(pid: int) -> dict[str, float]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def _thirds(values: list[float]) -> tuple[float, float]:
    third = max(1, len(values) // 3)
    return statistics.median(values[third : 2 * third] or values), statistics.median(
        values[-third:]
    )

"""What one comparison of engines is made of, and what it found."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CONTEXT = 128  # tokens before the first decoded one
ROOT = Path.home() / ".cache" / "pd-bench"  # of competitors, a folder each
Cells = dict[str, float]  # "decode 8" or "prefill 512": tokens/s


class Lacking(Exception):
    """A competitor cannot be built or run here; says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared."""

    model: Path
    threads: int
    rooms: tuple[int, ...]
    prompts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """A competitor: how it is had, and how it is asked."""

    name: str
    version: Callable[[], str | None]  # None: it is not installed
    install: Callable[[int], None]  # with so many threads
    measure: Callable[[Asked, str], Cells]


@dataclass(frozen=True, slots=True)
class Spread:
    """Some rounds of one cell."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.0f} ({self.least:.0f}-{self.most:.0f})"


def spread_of(values: Sequence[float]) -> Spread:
    """Return a cell's median and range."""
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a goal was met in one cell, and the number that says so."""

    goal: str
    is_met: bool

    def __str__(self) -> str:
        return f"{'met' if self.is_met else 'MISSED'}: {self.goal}"


# Of reading at batch 1 and 8, and of multiplying: what a cell has to reach of its limit.
SHARES = {"decode 1": 0.8, "decode 8": 0.6, "prefill": 0.8}


def verdicts(cell: str, speeds: dict[str, Spread], share: Spread) -> list[Verdict]:
    """Return what is asked of a cell: its part of the limit, and to be ahead of every peer.

    Args:
        cell: its name.
        speeds: tokens/s by engine, ours as ``ours``; what begins so is no peer.
        share: of the limit, by rounds.
    """
    found = []
    wanted = SHARES.get(cell, SHARES.get(cell.partition(" ")[0]))
    if wanted is not None:
        said = f"{share.median:.2f} of the limit, {wanted} wanted"
        found.append(Verdict(said, share.median >= wanted))
    peers = {name: speed.median for name, speed in speeds.items() if not name.startswith("ours")}
    if peers:
        best = max(peers, key=lambda name: peers[name])
        ahead = speeds["ours"].median / peers[best]
        found.append(Verdict(f"{ahead:.2f} of {best}", ahead >= 1.0))
    return found


def run(command: list[str]) -> None:
    """Run it with its words on standard error; raises Lacking when it fails."""
    print("+", *command, file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise Lacking(f"{command[0]} ended with {done.returncode}")

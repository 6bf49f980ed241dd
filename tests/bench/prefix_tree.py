"""What the tree of cached pages costs: per page of a prompt, over lengths; it should not grow.

- ``miss`` looks a new prompt up, ``keep`` takes its pages in, ``hit`` reads it again whole and
  ends, ``evict`` makes its pages free by taking as many for another prompt.
- Rounds of all lengths take turns; the table shows medians, in microseconds of this thread a page,
  so that what else runs here hardly matters. ``hash`` is the
  bare cost of making and hashing the same tuples, which nothing in Python can undercut.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from daemons.kv.ledger import Ledger, Owner
from daemons.kv.prefix_tree import PrefixTree
from daemons.protocol.ids import RoomKey

PAGE = 16
LENGTHS = (64, 256, 1024, 4096)  # pages


def measure(pages: int, seed: int) -> dict[str, float]:
    """Return microseconds a page of each deed, over a pool of twice the prompt."""
    draw = random.Random(seed)
    ledger = Ledger(2 * pages)
    tree = PrefixTree(ledger, PAGE)
    text = tuple(draw.randrange(32000) for _ in range(pages * PAGE))
    room, taken = RoomKey(1, 1), ledger.take(RoomKey(1, 1), pages, Owner.REQUEST)
    lease = tree.lease(room, "", text, pages)
    other = RoomKey(2, 1)
    return {
        "hash": _us(
            pages, lambda: [hash(text[at : at + PAGE]) for at in range(0, len(text), PAGE)]
        ),
        "miss": _us(pages, lambda: tree.lease(other, "", text[::-1], pages)),
        "keep": _us(
            pages,
            lambda: (tree.extend(room, "", lease, text, taken), tree.end(room, lease)),
        ),
        "hit": _us(pages, lambda: tree.end(other, tree.lease(other, "", text, pages))),
        "evict": _us(pages, lambda: ledger.take(other, 2 * pages, Owner.REQUEST)),
    }


def _us(pages: int, do: Callable[[], object]) -> float:
    begun_s = time.thread_time()
    do()
    return (time.thread_time() - begun_s) / pages * 1e6


def main(argv: list[str]) -> int:
    """Print the table, and write JSON where ``--json`` says."""
    parser = argparse.ArgumentParser(prog="bench prefix_tree", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args(argv)
    rounds: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(flags.rounds):
        for pages in LENGTHS:
            for deed, took_us in measure(pages, seed).items():
                rounds[pages][deed].append(took_us)
    table = {
        pages: {deed: statistics.median(took) for deed, took in deeds.items()}
        for pages, deeds in rounds.items()
    }
    print("pages    " + "".join(f"{deed:>10}" for deed in table[LENGTHS[0]]) + "   us a page")
    for pages, deeds in table.items():
        print(f"{pages:<9}" + "".join(f"{took:10.2f}" for took in deeds.values()))
    if flags.json:
        flags.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0

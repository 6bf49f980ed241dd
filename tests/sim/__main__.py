"""Runs the simulated cluster over many seeds: ``python -m tests.sim --seeds 20000``."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from collections import Counter

from tests.sim.plan import draw
from tests.sim.world import World

LAST_LINES = 60


def run_seed(seed: int, *, trace: bool = False) -> World:
    """Run one seed to its end and return its world; raises what it finds."""
    world = World(draw(seed), trace=trace)
    world.run()
    return world


def trace_of(seed: int) -> tuple[list[str], BaseException | None]:
    """Return the whole trace of a seed, and what it raised."""
    world = World(draw(seed), trace=True)
    assert world.trace is not None
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever it finds is shown
        return world.trace, error
    return world.trace, None


def trace_hash(seed: int) -> str:
    """Return a hash over all that happens in a seed."""
    lines, error = trace_of(seed)
    return hashlib.sha256("\n".join([*lines, repr(error)]).encode()).hexdigest()


def main() -> int:
    """Read the flags, run the seeds, and show what fails."""
    parser = argparse.ArgumentParser(prog="tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print all that happens in --seed")
    parser.add_argument("--lines", type=int, default=LAST_LINES, help="last events of a failure")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    flags = parser.parse_args()
    if flags.seed is not None:
        return _show(flags.seed, None if flags.trace else flags.lines)
    begun, failed, seen, events = time.monotonic(), 0, Counter[str](), 0
    for done, seed in enumerate(range(flags.first, flags.first + flags.seeds), 1):
        try:
            world = run_seed(seed)
            events += world.events
            seen += world.seen
        except Exception as error:  # noqa: BLE001 - whatever it finds is shown
            failed += 1
            if not flags.keep_going:
                return _show(seed, flags.lines)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        if done % 500 == 0:
            rate = done / (time.monotonic() - begun)
            print(f"{done} seeds, {rate:.0f} a second, {failed} failed", flush=True)
    took_s = time.monotonic() - begun
    print(f"{flags.seeds} seeds, {events} events, {took_s:.1f} s, {failed} failed")
    print(", ".join(f"{name}: {count}" for name, count in sorted(seen.items())))
    return 1 if failed else 0


def _show(seed: int, lines: int | None) -> int:
    trace, error = trace_of(seed)
    print(draw(seed))
    print("\n".join(trace if lines is None else trace[-lines:]))
    if error is None:
        print(f"seed {seed}: well")
        return 0
    traceback.print_exception(error)
    print(f"seed {seed} fails; again: python -m tests.sim --seed {seed} --trace", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

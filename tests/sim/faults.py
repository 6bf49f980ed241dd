"""What goes wrong with whole processes and the ways between them, and when."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from daemons.runtime.events import ConnectionLost, Draining, Stopping

if TYPE_CHECKING:
    from tests.sim.world import World

LEAST_BETWEEN_S = 4.0  # freezes of one process do not follow each other closer


def schedule(world: World, rng: Random, end_s: float) -> None:
    """Put all faults of the plan on the world's calendar; all are over at ``end_s``."""
    plan = world.plan

    def moment() -> float:
        return rng.random() * end_s * 0.7

    instances = list(world.instances)
    for _ in range(plan.crashes):
        gap_s = rng.choice((0.01, 0.5, 3.0)) * rng.random()
        world.at(moment(), _crash, world, rng.choice(instances), gap_s)
    for _ in range(plan.stops):
        gap_s = rng.choice((0.01, 0.5, 3.0)) * rng.random()
        world.at(moment(), _stop, world, rng.choice(instances), gap_s)
    for _ in range(plan.partitions):
        pair = (rng.choice(world.prefill_names), rng.choice(world.decode_names))
        world.at(moment(), _part, world, pair, rng.choice((0.3, 2.0, 6.0)) * rng.random())
    last_s: dict[str, float] = {}
    for at_s in sorted(moment() for _ in range(plan.freezes)):
        name = rng.choice(instances)
        begin_s = max(at_s, last_s.get(name, 0.0))
        for_s = rng.choice((0.5, 3.0, 5.0)) * rng.random()
        last_s[name] = begin_s + for_s + LEAST_BETWEEN_S
        if begin_s + for_s < end_s:
            world.at(begin_s, _freeze, world, name, for_s)
    for _ in range(plan.flaps):
        pair = (rng.choice(world.prefill_names), rng.choice(world.decode_names))
        world.at(moment(), _flap, world, *(pair if rng.random() < 0.5 else pair[::-1]))
    for _ in range(plan.drains):
        world.at(moment(), _drain, world, rng.choice(instances), rng.random() * 2)


def _crash(world: World, name: str, gap_s: float) -> None:
    process = world.current.get(name)
    if process is not None and process.alive:
        world.kill(process)
        world.after(gap_s, world.start, name)


def _stop(world: World, name: str, gap_s: float) -> None:
    process = world.current.get(name)
    if process is not None and process.alive:
        process.deliver(Stopping())
        world.after(world.rng.random() * 0.5, _crash_that, world, process, gap_s)


def _crash_that(world: World, process: object, gap_s: float) -> None:
    for name, current in world.current.items():
        if current is process:
            _crash(world, name, gap_s)
            return


def _part(world: World, pair: tuple[str, str], for_s: float) -> None:
    parted = frozenset(pair)
    if parted not in world.network.parted:
        world.network.parted.add(parted)
        world.after(for_s, world.network.heal, parted)


def _freeze(world: World, name: str, for_s: float) -> None:
    process = world.current[name]
    if process.alive and not process.frozen:
        process.freeze()
        world.after(for_s, process.thaw)


def _flap(world: World, one: str, other: str) -> None:
    process, peer = world.current[one], world.current[other]
    if peer.me in process.ways:
        process.deliver(ConnectionLost(peer.me))


def _drain(world: World, name: str, for_s: float) -> None:
    process = world.current[name]
    process.deliver(Draining(on=True))
    world.after(for_s, process.deliver, Draining(on=False))

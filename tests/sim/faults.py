"""What goes wrong with whole processes and the ways between them, and when.

Many faults wait for their chance: until bytes are on their way to or from the process, or until
memory of it settles, since that is where they hurt.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from daemons.decode.events import Retract
from daemons.decode.quarantine import LOOKS
from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.runtime.events import ConnectionLost, Draining, Stopping

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.world import World

LEAST_BETWEEN_S = 4.0  # freezes of one process do not follow each other closer
PATIENCE_S = 4.0  # a fault that waits for its chance comes anyway then
LOOK_S = 0.03

Chance = Callable[["World", str], bool]


def schedule(world: World, rng: Random, end_s: float) -> None:
    """Put all faults of the plan on the world's calendar; all are over at ``end_s``."""
    plan = world.plan
    instances = list(world.instances)

    def moment() -> float:
        return rng.random() * end_s * 0.6

    def gap_s() -> float:
        return rng.choice((0.01, 0.5, 3.0)) * rng.random()

    def pair() -> tuple[str, str]:
        return rng.choice(world.prefill_names), rng.choice(world.decode_names)

    def put(at_s: float, name: str, fault: Callable[..., None], *args: object) -> None:
        chance = rng.choice((_always, _writing, _writing, _settling))
        world.at(at_s, _when, world, chance, name, at_s + PATIENCE_S, fault, args)

    for _ in range(plan.crashes):
        name = rng.choice(instances)
        put(moment(), name, _crash, world, name, gap_s())
    for _ in range(plan.stops):
        name = rng.choice(instances)
        put(moment(), name, _stop, world, name, gap_s())
    for _ in range(plan.partitions):
        parted = pair()
        for_s = rng.choice((0.3, 3.0, 6.0)) * rng.random()
        put(moment(), rng.choice(parted), _part, world, parted, for_s)
    for _ in range(plan.freezes):
        name = rng.choice(instances)
        put(moment(), name, _freeze, world, name, rng.choice((0.5, 4.0, 5.0)) * rng.random())
    for _ in range(plan.accidents):
        _accident(world, rng, moment(), pair(), end_s * 0.8)
    for _ in range(plan.flaps):
        one, other = pair()[:: rng.choice((1, -1))]
        world.at(moment(), _flap, world, one, other)
    for _ in range(plan.drains):
        world.at(moment(), _drain, world, rng.choice(instances), rng.random() * 2)


def squeeze(world: World, rng: Random, end_s: float) -> None:
    """Put moments on the calendar at which running rooms are retracted, calm plans included."""
    for _ in range(world.plan.retractions):
        world.at(rng.random() * end_s, _retract, world, rng.choice(world.decode_names))


def _retract(world: World, name: str) -> None:
    process = world.current[name]
    if process.alive and isinstance(process.core, DecodeCore):
        for key in list(process.core.stages.running.rooms):
            process.deliver(Retract(key))


def _when(
    world: World,
    chance: Chance,
    name: str,
    latest_s: float,
    fault: Callable[..., None],
    args: tuple[object, ...],
) -> None:
    if world.now >= latest_s or chance(world, name):
        fault(*args)
    else:
        world.after(LOOK_S, _when, world, chance, name, latest_s, fault, args)


def _always(world: World, name: str) -> bool:
    return True


def _writing(world: World, name: str) -> bool:
    """Bytes are on their way to the instance, or from it."""
    for process in world.alive():
        for peer in process.lanes.active:
            if name in (process.instance, peer.instance):
                return True
    return False


def _settling(world: World, name: str) -> bool:
    """A decode waits for what may be in its sockets."""
    process = world.current.get(name)
    core = process.core if process else None
    return isinstance(core, DecodeCore) and any(
        held.settles_s is not None for held in core.quarantine.rooms.values()
    )


def _crash(world: World, name: str, gap_s: float) -> None:
    process = world.current[name]
    if process.alive:
        _end(world, process, gap_s)


def _accident(
    world: World, rng: Random, at_s: float, pair: tuple[str, str], latest_s: float
) -> None:
    """A writer is hurt in the middle of a write, and then maybe its receiver freezes."""
    writer, receiver = pair
    how, for_s = rng.choice((_cut, _crash_soon, _hold_up)), 2.0 + 3.0 * rng.random()
    world.at(at_s, _when, world, _writing, writer, latest_s, how, (world, writer))
    if how is not _hold_up:
        freeze = (world, receiver, for_s)
        world.at(at_s, _when, world, _settling, receiver, latest_s, _freeze, freeze)


def _cut(world: World, name: str) -> None:
    world.current[name].lanes.cut_all()


def _crash_soon(world: World, name: str) -> None:
    _crash(world, name, world.rng.random())


def _hold_up(world: World, name: str) -> None:
    """Suspect for so long that all would have settled if it were dead; and then it goes on."""
    timers = world.plan.timers
    settles_s = timers.settle_s + LOOKS * world.plan.tick_s
    _freeze(world, name, timers.peer_timeout_s + settles_s + 0.5)


def _stop(world: World, name: str, gap_s: float) -> None:
    process = world.current[name]
    if process.alive:
        process.deliver(Stopping())
        world.after(world.rng.random() * 0.5, _end, world, process, gap_s)


def _end(world: World, process: Process, gap_s: float) -> None:
    if process.alive:
        world.kill(process)
        world.after(gap_s, world.start, process.instance)


def _part(world: World, pair: tuple[str, str], for_s: float) -> None:
    parted = frozenset(pair)
    if parted not in world.network.parted:
        world.network.parted.add(parted)
        world.after(for_s, world.network.heal, parted)


def _freeze(world: World, name: str, for_s: float) -> None:
    process = world.current[name]
    rested = world.now - process.thawed_s >= LEAST_BETWEEN_S
    if process.alive and not process.frozen and rested:
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

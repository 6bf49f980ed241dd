"""The phone book as ranks see it: an answer that is late, stale, or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import RouteFailed, RouteFound
from daemons.protocol.ids import PeerId

if TYPE_CHECKING:
    from tests.sim.network import Address
    from tests.sim.process import Process
    from tests.sim.world import World


@dataclass(slots=True)
class PhoneBook:
    """The lives of each instance, newest last."""

    world: World
    lives: dict[str, list[tuple[PeerId, Address]]] = field(default_factory=dict)

    def register(self, process: Process) -> None:
        """A process has begun."""
        self.lives.setdefault(process.instance, []).append((process.me, process.address))

    def look_up(self, asker: Process, instance: str) -> None:
        """Answer somehow, some time."""
        world, plan, rng = self.world, self.world.plan, self.world.rng
        delay_s = rng.random() * 2 * plan.book_s
        known = self.lives.get(instance, [])
        if not known or (world.faulty and rng.random() < plan.book_fails):
            failure = Failure(Cause.BOOTSTRAP_UNREACHABLE, "prealloc", "bootstrap", "no answer")
            world.after(delay_s, asker.deliver, RouteFailed(instance, failure))
            return
        stale = world.faulty and rng.random() < plan.book_stale
        peer, (host, port) = rng.choice(known) if stale else known[-1]
        lies = rng.random() < 0.5  # then the handshake must find out
        told = world.fingerprint if lies else world.fingerprint_of(instance)
        route = RouteFound(instance, peer.rank, peer.epoch, host, port, told)
        world.after(delay_s, asker.deliver, route)

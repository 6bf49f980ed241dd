"""The message plane: bytes between addresses, late, out of order, twice, or not at all.

Messages are encoded and decoded as on the wire. A probe of an address without a process is
refused; one of a frozen or unreachable process is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daemons.protocol.codec import decode, encode
from daemons.protocol.handshake import Heartbeat, Message
from daemons.protocol.ids import PeerId
from daemons.runtime.events import ConnectionLost, MessageCame, Probed

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.world import World

Address = tuple[str, int]


@dataclass(slots=True)
class Network:
    """All ways between the processes of a world."""

    world: World
    listeners: dict[Address, Process] = field(default_factory=dict)
    parted: set[frozenset[str]] = field(default_factory=set)
    held: list[tuple[Process, Address, bytes]] = field(default_factory=list)
    said: int = 0  # messages other than heartbeats
    _last_s: dict[tuple[PeerId, Address], float] = field(default_factory=dict)

    def cut(self, one: str, other: str) -> bool:
        """Say whether two instances cannot reach each other now."""
        return bool(self.parted) and frozenset((one, other)) in self.parted

    def send(self, sender: Process, address: Address, message: Message) -> None:
        """Post a message; nobody is told what becomes of it."""
        self.said += not isinstance(message, Heartbeat)
        self._post(sender, address, encode(message))

    def heal(self, pair: frozenset[str]) -> None:
        """Join two instances again, and deliver what was held back."""
        self.parted.discard(pair)
        held, self.held = self.held, []
        for sender, address, raw in held:
            self._post(sender, address, raw)

    def probe(self, sender: Process, peer: PeerId, address: Address) -> None:
        """Knock at an address and tell the sender."""
        self.world.after(self._delay_s(), self._knock, sender, peer, address)

    def lose_connections(self, gone: Process) -> None:
        """Tell those who were connected to a process that it hung up."""
        for other in self.world.alive():
            if gone.me in other.ways and not self.cut(other.instance, gone.instance):
                self.world.after(self._delay_s(), other.deliver, ConnectionLost(gone.me))

    def _knock(self, sender: Process, peer: PeerId, address: Address) -> None:
        refused = address not in self.listeners and not self.cut(sender.instance, peer.instance)
        self.world.after(self._delay_s(), sender.deliver, Probed(peer, refused))

    def _post(self, sender: Process, address: Address, raw: bytes) -> None:
        plan, rng = self.world.plan, self.world.rng
        receiver = self.listeners.get(address)
        if receiver is None:
            return
        if self.cut(sender.instance, receiver.instance):
            if plan.holds:
                self.held.append((sender, address, raw))
            return
        faulty = self.world.faulty
        if faulty and plan.drop and rng.random() < plan.drop:
            return
        copies = 1 + (faulty and plan.duplicate > 0 and rng.random() < plan.duplicate)
        for _ in range(copies):
            due_s = self.world.now + self._delay_s()
            if plan.ordered:
                way = (sender.me, address)
                due_s = max(due_s, self._last_s.get(way, 0.0))
                self._last_s[way] = due_s
            self.world.at(due_s, self._arrive, address, raw)

    def _delay_s(self) -> float:
        plan, rng = self.world.plan, self.world.rng
        delay_s = rng.random() * 2 * plan.delay_s
        if self.world.faulty and plan.straggle and rng.random() < plan.straggle:
            delay_s += rng.random() * plan.straggle_s
        return delay_s

    def _arrive(self, address: Address, raw: bytes) -> None:
        receiver = self.listeners.get(address)
        if receiver is None:
            return
        message = decode(raw)
        if message.to_epoch == receiver.me.epoch:  # the shell's check: only for this life
            receiver.deliver(MessageCame(message))

"""The prefills that rooms name: looked up, checked, told of our buffers, then ready.

Rooms wait for an instance, not for a process: when a life ends the instance is looked up again.
Each room has its own deadline for the wait; here it is only known how far an instance is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import LookUp, RouteFailed, RouteFound
from daemons.protocol.handshake import RegisterBuffers, RegistrationAnswer
from daemons.protocol.ids import PeerId
from daemons.protocol.topology import differences
from daemons.runtime.commands import Send
from daemons.runtime.liveness import Life
from daemons.runtime.peers import PeerCommand, Peers

RETRY_S = 0.5  # between look-ups, and between registrations that are not answered
ANSWER_S = 5.0  # how long an answer is waited for before the instance is looked up again
REFUSAL_S = 5.0  # how long a refusal is believed


class Step(StrEnum):
    """How far we are with an instance."""

    LOOKING = "looking"
    UNKNOWN = "unknown"  # the look-up failed; tried again
    REGISTERING = "registering"
    READY = "ready"
    REFUSED = "refused"


@dataclass(slots=True)
class Prefill:
    """One instance, whatever its life."""

    step: Step
    since_s: float
    peer: PeerId | None = None
    failure: Failure | None = None
    asked_s: float = 0.0  # when the registration was last sent


@dataclass(slots=True)
class Prefills:
    """All instances that rooms have named."""

    buffers: RegisterBuffers  # ours; the epoch it is meant for is filled in
    peers: Peers
    known: dict[str, Prefill] = field(default_factory=dict)

    def need(self, instance: str, now: float) -> list[LookUp]:
        """Begin to find an instance, unless that is under way."""
        prefill = self.known.get(instance)
        if prefill is not None and not self._worth_another_look(prefill, now):
            return []
        failure = prefill.failure if prefill else None
        self.known[instance] = Prefill(Step.LOOKING, now, failure=failure)
        return [LookUp(instance)]

    def ready(self, instance: str) -> PeerId | None:
        """Return the peer that rooms may be sent to now."""
        prefill = self.known.get(instance)
        if prefill is None or prefill.step is not Step.READY or prefill.peer is None:
            return None
        alive = self.peers.liveness.life(prefill.peer) is Life.ALIVE
        return prefill.peer if alive else None

    def refusal(self, instance: str) -> Failure | None:
        """Return why an instance does not take our rooms."""
        prefill = self.known.get(instance)
        return prefill.failure if prefill and prefill.step is Step.REFUSED else None

    def last_failure(self, instance: str) -> Failure | None:
        """Return what the last look-up said, for a room that has waited long enough."""
        prefill = self.known.get(instance)
        return prefill.failure if prefill else None

    def found(self, route: RouteFound, now: float) -> list[PeerCommand | Send]:
        """Take a look-up's answer: register with that life, unless it is dead or unlike us."""
        prefill = self.known.get(route.instance)
        if prefill is None or prefill.step is not Step.LOOKING:
            return []
        peer = PeerId(route.instance, route.epoch, route.rank)
        if self.peers.liveness.is_buried(peer):
            detail = "the phone book still has a life of it that is over"
            failure = Failure(Cause.BOOTSTRAP_UNKNOWN, "prealloc", route.instance, detail)
            self.known[route.instance] = Prefill(Step.UNKNOWN, now, failure=failure)
            return []
        unlike = differences(self.buffers.fingerprint, route.fingerprint)
        if unlike:
            failure = Failure(Cause.PAIR_MISMATCH, "prealloc", route.instance, "; ".join(unlike))
            self.known[route.instance] = Prefill(Step.REFUSED, now, failure=failure)
            return []
        self.known[route.instance] = Prefill(Step.REGISTERING, now, peer, asked_s=now)
        connect = self.peers.add(peer, route.host, route.port, now)
        return [*connect, self._registration(peer)]

    def not_found(self, answer: RouteFailed, now: float) -> None:
        """Take a look-up's bad answer; it is tried again while rooms wait."""
        prefill = self.known.get(answer.instance)
        if prefill is not None and prefill.step is Step.LOOKING:
            self.known[answer.instance] = Prefill(Step.UNKNOWN, now, failure=answer.failure)

    def answered(self, answer: RegistrationAnswer, now: float) -> None:
        """Take a prefill's answer to our buffers."""
        prefill = self.known.get(answer.sender.instance)
        if prefill is None or prefill.peer != answer.sender:
            return
        if answer.refused:
            peer = answer.sender.instance
            failure = Failure(Cause.HANDSHAKE_REFUSED, "prealloc", peer, answer.refused)
            self.known[peer] = Prefill(Step.REFUSED, now, answer.sender, failure)
        elif prefill.step is Step.REGISTERING:
            self.known[answer.sender.instance] = Prefill(Step.READY, now, answer.sender)

    def bury(self, peer: PeerId) -> list[PeerCommand]:
        """Forget a life that is over; the instance is looked up again when it is needed."""
        prefill = self.known.get(peer.instance)
        if prefill is not None and prefill.peer == peer:
            del self.known[peer.instance]
        return self.peers.bury(peer)

    def tick(self, now: float) -> list[Send]:
        """Repeat registrations that were not answered, until it is time to look again."""
        again: list[Send] = []
        for prefill in self.known.values():
            asking = prefill.step is Step.REGISTERING and now - prefill.since_s < ANSWER_S
            late = asking and now - prefill.asked_s >= RETRY_S
            if late and prefill.peer is not None:
                prefill.asked_s = now
                again.append(self._registration(prefill.peer))
        return again

    def _registration(self, peer: PeerId) -> Send:
        return Send(peer, msgspec.structs.replace(self.buffers, to_epoch=peer.epoch))

    def _worth_another_look(self, prefill: Prefill, now: float) -> bool:
        waits = {
            Step.LOOKING: ANSWER_S,
            Step.UNKNOWN: RETRY_S,
            Step.REGISTERING: ANSWER_S,
            Step.REFUSED: REFUSAL_S,
        }
        if prefill.peer is not None and self.peers.liveness.life(prefill.peer) is not Life.ALIVE:
            waits[prefill.step] = 2 * RETRY_S  # silent: it may live on with another epoch
        return prefill.step in waits and now - prefill.since_s >= waits[prefill.step]

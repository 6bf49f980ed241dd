"""In worlds without other faults, each message that is lost once is made up for within seconds."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.decode.transfer_queue import TransferQueue
from daemons.protocol.codec import decode
from daemons.protocol.handshake import (
    Destination,
    Heartbeat,
    Message,
    Progress,
    RegisterBuffers,
    RegistrationAnswer,
)
from daemons.protocol.status import Status
from tests.sim.__main__ import run_seed
from tests.sim.invariants import Violation
from tests.sim.network import Network
from tests.sim.plan import draw

CALM = [seed for seed in range(300) if draw(seed).calm]


def kind(message: Message) -> str:
    if isinstance(message, Progress):
        return message.status.name
    return type(message).__name__


def lose_once(patch: pytest.MonkeyPatch, lost: str) -> None:
    """Drop the first message of a kind about each room (or between each two peers)."""
    post = Network._post

    def lossy(self: Network, sender: Any, address: Any, raw: bytes) -> None:
        message = decode(raw)
        about = (kind(message), sender.me, address, getattr(message, "room", 0))
        known = self.world.seen
        if kind(message) == lost and not known[f"lost {about}"]:
            known[f"lost {about}"] += 1
            return
        post(self, sender, address, raw)

    patch.setattr(Network, "_post", lossy)


def run_all() -> int:
    """Run the calm worlds; return how many messages were lost."""
    seen = [name for seed in CALM for name in run_seed(seed).seen]
    return sum(name.startswith("lost ") for name in seen)


@pytest.mark.parametrize(
    "lost",
    [
        RegisterBuffers.__name__,
        RegistrationAnswer.__name__,
        Destination.__name__,
        Heartbeat.__name__,
        *(status.name for status in (Status.WAITING_FOR_INPUT, Status.TRANSFERRING)),
        Status.SUCCESS.name,
    ],
)
def test_every_room_ends_well_although_one_message_is_lost(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_once(monkeypatch, lost)
    assert run_all() > 0


def test_without_asking_again_a_lost_success_is_a_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lose_once(monkeypatch, Status.SUCCESS.name)
    monkeypatch.setattr(TransferQueue, "unheard", lambda self, now: [])
    with pytest.raises(Violation, match="standstill"):
        run_all()

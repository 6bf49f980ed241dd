"""Names of things: rooms, attempts, instances, epochs, peers.

A room is drawn by the balancer, never 0, below 2**53 so that JSON readers keep it whole.
An instance (``p0``) is one word everywhere: cluster file, unit, log, command line.
An epoch is new at each start of a process and grows, so that the newer process is known.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

ROOM_LIMIT = 2**53
ROOM_HEX_DIGITS = 14
ROOM_SHORT_DIGITS = 8

Room = Annotated[int, msgspec.Meta(gt=0, lt=ROOM_LIMIT)]
Attempt = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Epoch = Annotated[int, msgspec.Meta(gt=0, lt=ROOM_LIMIT)]
InstanceName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,31}\Z")]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=4096)]
Port = Annotated[int, msgspec.Meta(gt=0, lt=65536)]

_INSTANCE = re.compile(r"[a-z][a-z0-9-]{0,31}")


class RoomKey(NamedTuple):
    """One try at one sample; a retry has the next attempt (and, from pd-lb, a new room)."""

    room: int
    attempt: int

    def __str__(self) -> str:
        return f"{room_hex(self.room)}.{self.attempt}"


class PeerId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank process in one life: a restarted process is another peer."""

    instance: InstanceName
    epoch: Epoch
    rank: Rank = 0

    def __str__(self) -> str:
        return f"{self.instance}/{self.rank}@{self.epoch}"


def room_hex(room: int) -> str:
    """Return the full printed form of a room, 14 hexadecimal digits."""
    return f"{room:0{ROOM_HEX_DIGITS}x}"


def room_short(room: int) -> str:
    """Return the short printed form, the first 8 digits of :func:`room_hex`."""
    return room_hex(room)[:ROOM_SHORT_DIGITS]


def is_instance_name(name: str) -> bool:
    """Say whether ``name`` may name an instance: lower-case word, at most 32 characters."""
    return _INSTANCE.fullmatch(name) is not None

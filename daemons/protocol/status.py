"""The status of a room: it only moves forward, ends for good, and ranks agree by MIN.

Source: SGLang ``disaggregation/base/conn.py`` ``KVPoll``; there FAILED may be overwritten by a
late success on some paths, here both ends are final.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Status(IntEnum):
    """Progress of a room between prefill and decode, in wire order."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4


FINAL = frozenset({Status.FAILED, Status.SUCCESS})


def advance(known: Status, seen: Status) -> Status:
    """Return the status after seeing ``seen``: final ones stay, others only grow, FAILED ends."""
    if known in FINAL:
        return known
    if seen is Status.FAILED:
        return seen
    return max(known, seen)


def agreed(statuses: Iterable[Status]) -> Status:
    """Return what all ranks agree on: the least of theirs, so one FAILED fails the room.

    Raises:
        ValueError: no rank reported.
    """
    return min(statuses)

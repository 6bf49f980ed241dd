"""What a policy answers."""

from __future__ import annotations

from typing import NamedTuple

from daemons.lb.fleet import Worker


class Choice(NamedTuple):
    """A worker, and why, in a few words for the room's story."""

    worker: Worker
    because: str

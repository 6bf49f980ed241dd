"""Candidates by name, and what a policy picks among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daemons.lb.fleet import Candidate, Worker
from daemons.protocol.topology import Role, State

Make = Callable[..., Candidate]


@pytest.fixture
def one() -> Make:
    """Return a maker of candidates."""

    def make(name: str, *, epoch: int = 1, **facts: Any) -> Candidate:
        return Candidate(Worker(name, Role.PREFILL, epoch, State.READY, "h", 1), **facts)

    return make

"""Runs a front: ranks, link, HTTP, registration, drain."""

from __future__ import annotations

from daemons.front.config import FrontConfig


def run(config: FrontConfig) -> int:
    """Serve until SIGTERM, SIGINT or a death; return the exit code (0 drained, 1 anything else)."""
    raise NotImplementedError

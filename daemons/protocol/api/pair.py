"""Where a body says who works on it: the balancer's part of every request to a worker.

A request of ``prompts`` prompts with ``n`` samples each has ``prompts * n`` rooms, the samples of
a prompt side by side. Each field is a scalar for all, or a list with an entry per prompt or room.
"""

from __future__ import annotations

import msgspec


class PairBody(msgspec.Struct, frozen=True):
    """SGLang's ``bootstrap_*``, and what ours add to them."""

    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None
    bootstrap_instance: str | list[str | None] | None = None
    bootstrap_attempt: int | list[int] | None = None
    priority: int | None = None  # goes before the header
    cache_salt: str | list[str | None] | None = None  # whose cached pages may be read
    local_prefill: bool | None = None  # decode computes the prompt itself

"""One session string that names a process to several backends.

``mooncake=10.0.0.1:15555,cma=…``: a backend that is asked to write to such a string takes the
part that is its own; a string without parts is a single backend's and is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache


def joined(parts: Mapping[str, str]) -> str:
    """Return one string of a session per backend."""
    return ",".join(f"{name}={session}" for name, session in parts.items())


@lru_cache(maxsize=4096)
def part(session: str, name: str) -> str:
    """Return what ``session`` is to the backend ``name``; "" when it has nothing for it."""
    words = [word.partition("=") for word in session.split(",")]
    if not all(equals for _, equals, _ in words):
        return session
    return next((own for word, _, own in words if word == name), "")

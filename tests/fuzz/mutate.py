"""Valid bytes and valid documents, spoiled a little at random."""

from __future__ import annotations

import random
from typing import Any

NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 1e308, -0.0, float("inf"),
    float("nan"), "", " ", "a", "\0", "\n", "p0", "d0", "../..", "\ud7ff", "é" * 300, "x" * 70_000,
    [], {}, [[]], [None], [0] * 5000, {"": 0}, {"a": {"b": {}}}, [-1], ["x"],
)  # fmt: skip
INTERESTING = (b"\0", b"\xff", b"\r\n", b"\r\n\r\n", b"%00", b'"', b"{", b"[" * 2000, b"\x80" * 64)


def document(draw: random.Random, value: Any) -> Any:
    """Return a copy of a document with one to three places changed."""
    for _ in range(draw.randint(1, 3)):
        value = _changed(draw, value)
    return value


def raw(draw: random.Random, given: bytes) -> bytes:
    """Return bytes with one to four changes: flipped, cut out, put in, doubled or cut short."""
    spoiled = bytearray(given)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(spoiled) + 1)
        match draw.randrange(5):
            case 0 if at < len(spoiled):
                spoiled[at] ^= 1 << draw.randrange(8)
            case 1:
                del spoiled[at : at + draw.randint(1, 16)]
            case 2:
                spoiled[at:at] = draw.choice(INTERESTING)
            case 3:
                spoiled[at:at] = spoiled[max(0, at - draw.randint(1, 64)) : at]
            case _:
                del spoiled[draw.randrange(len(spoiled) + 1) :]
    return bytes(spoiled)


def _changed(draw: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        match draw.randrange(6):
            case 0:
                return {key: kept for key, kept in value.items() if key != name}
            case 1:
                return {**value, "surprise": draw.choice(NASTY)}
            case _:
                return {**value, name: _changed(draw, value[name])}
    if isinstance(value, list | tuple) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        changed = list(value)
        match draw.randrange(4):
            case 0:
                del changed[place]
            case 1:
                changed += changed[:1000]
            case _:
                changed[place] = _changed(draw, changed[place])
        return changed
    return draw.choice(NASTY)

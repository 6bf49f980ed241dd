"""The stories of one room that went well, as three daemons tell them."""

from __future__ import annotations

import msgspec

from daemons.protocol.causes import Failure
from daemons.protocol.story import Line, Story

ROOM = 0x7F3A91C2000001 & (2**53 - 1)
MIB = 1 << 20

LB = Story(
    ROOM,
    1,
    "lb",
    "lb",
    (
        Line(100.0, "", "dispatch", "least rooms", peer="p0 -> d0"),
        Line(100.23, "dispatch", "dispatch", "prefill leg done"),
        Line(100.25, "dispatch", "stream", "first event"),
        Line(101.0, "stream", "", "done"),
    ),
    False,
    peer="p0 -> d0",
    facts={"prefill": "p0", "decode": "d0", "why": "least rooms"},
)
PREFILL = Story(
    ROOM,
    1,
    "p0",
    "prefill",
    (
        Line(100.01, "", "bootstrap", "request came"),
        Line(100.03, "bootstrap", "waiting", "destination came", peer="d0"),
        Line(100.04, "waiting", "forward", "memory was free"),
        Line(100.1, "forward", "forward", "chunk computed", tokens=3072),
        Line(100.15, "forward", "forward", "chunk sent", bytes=3 * MIB),
        Line(100.2, "forward", "forward", "chunk computed", tokens=1024),
        Line(100.2, "forward", "inflight", "prompt is computed"),
        Line(100.23, "inflight", "inflight", "chunk sent", bytes=MIB),
        Line(100.23, "inflight", "", "every byte landed"),
    ),
    False,
    prompt_tokens=4096,
    cached_tokens=1024,
    output_tokens=1,
    peer="d0",
    facts={"wire_s": "0.050000"},
)
DECODE = Story(
    ROOM,
    1,
    "d0",
    "decode",
    (
        Line(100.01, "", "prealloc", "request came", peer="p0"),
        Line(100.02, "prealloc", "transfer", "256 pages"),
        Line(100.24, "transfer", "prebuilt", "row is right"),
        Line(100.245, "prebuilt", "running", "joined the batch"),
        Line(100.9, "running", "", "length"),
    ),
    False,
    prompt_tokens=4096,
    output_tokens=212,
    peer="p0",
)


def ended(story: Story, failure: Failure, at_s: float) -> Story:
    """Return a story that ended with a failure instead, in the same stage."""
    last = story.lines[-1]
    closing = Line(at_s, last.left, "", failure.cause.value)
    return msgspec.structs.replace(story, lines=(*story.lines[:-1], closing), failure=failure)

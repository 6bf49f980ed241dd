"""The W3C trace that a request belongs to: the client's, or a new one."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

TRACEPARENT = "traceparent"
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_draw = random.SystemRandom().getrandbits(64)
_random = random.Random(_draw)  # names, no secrets


def traceparent(headers: Mapping[str, str]) -> str:
    """Return the header for both legs; one that is none starts a trace of its own.

    Source: W3C Trace Context, section 3.2.
    """
    given = headers.get(TRACEPARENT, "")
    trace, span = given[3:35], given[36:52]
    if _FORM.fullmatch(given) and given[:2] != "ff" and trace.strip("0") and span.strip("0"):
        return given
    drawn = f"{_random.getrandbits(192) | 1 << 64 | 1:048x}"  # neither of the two is zero
    return f"00-{drawn[:32]}-{drawn[32:]}-01"

"""``pdctl await``: returns when so many workers are ready, for scripts that start a cluster."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import say

LOOK_S = 0.25
ROLES = {"p": "prefill", "prefill": "prefill", "d": "decode", "decode": "decode", "lb": "lb"}


def await_(
    ready: Annotated[
        str, typer.Option(help="How many of which role: P=2,D=2 or prefill=1.", metavar="COUNTS")
    ],
    config: options.Config = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", min=0)] = 300.0,
) -> int:
    """Wait until so many workers are ready; exit code 6 if they are not in time.

    Example: pdctl await --ready P=2,D=2 --timeout 120
    """
    from pdctl import target

    wanted = counts(ready)
    cluster = target.find(config).cluster
    end, told = time.monotonic() + timeout, ""
    while True:
        found, trouble = _ready(cluster)
        words = ", ".join(f"{role} {found.get(role, 0)}/{n}" for role, n in wanted.items())
        words = trouble or words
        if words != told:
            say(f"  {words}")
            told = words
        if not trouble and all(found.get(role, 0) >= n for role, n in wanted.items()):
            return Exit.OK
        if time.monotonic() >= end:
            raise CommandError(
                f"not ready after {timeout:.0f} s: {words}", "pdctl status", code=Exit.TIMEOUT
            )
        time.sleep(min(LOOK_S, max(end - time.monotonic(), 0.0)))


def counts(words: str) -> dict[str, int]:
    """Return how many of each role are wanted: ``P=2,D=1``.

    Raises:
        CommandError: it cannot be read.
    """
    wanted: dict[str, int] = {}
    for part in words.split(","):
        match = re.fullmatch(r"\s*([A-Za-z]+)\s*=\s*(\d{1,6})\s*", part)
        role = ROLES.get(match[1].lower()) if match else None
        if match is None or role is None or role in wanted:
            raise CommandError(
                f"--ready {words!r} is not like P=2,D=2",
                "roles are P (prefill), D (decode) and lb, each once",
                code=Exit.USAGE,
            )
        wanted[role] = int(match[2])
    return wanted


def _ready(cluster: object) -> tuple[dict[str, int], str]:
    from daemons.cluster.model import Cluster
    from daemons.protocol.topology import State
    from pdctl.places import places
    from pdctl.survey import phone_book

    assert isinstance(cluster, Cluster)
    listed, trouble = phone_book(places(cluster)["bootstrap"])
    found: dict[str, int] = {}
    for info in listed:
        if info.state is State.READY:
            found[info.role.value] = found.get(info.role.value, 0) + 1
    return found, trouble

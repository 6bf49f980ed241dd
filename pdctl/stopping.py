"""Ends daemons in the order that loses least: lb, then prefill, then decode, then bootstrap.

SIGTERM is drain. Whoever is still there at the deadline is killed with its process group; the
roles after it get ``GRACE_S`` each.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from pdctl.runs import Child

ORDER = ("lb", "prefill", "decode", "bootstrap")
GRACE_S = 5.0
LOOK_S = 0.2  # how often progress is told


def stop_in_order(
    children: Sequence[Child],
    deadline_s: float,
    *,
    progress: Callable[[list[Child]], None] = lambda left: None,
    hurry: Callable[[], bool] = lambda: False,
) -> list[str]:
    """End ``children`` and return the names of those that had to be killed.

    Args:
        children: daemons with the process of their present life.
        deadline_s: for all of them together.
        progress: told who is left, now and then.
        hurry: once it says yes, nobody is waited for any longer than ``GRACE_S``.
    """
    killed: list[str] = []
    end = time.monotonic() + deadline_s
    left = list(children)
    for role in ORDER:
        stage = [child for child in left if child.role == role]
        for child in stage:
            child.process.send(signal.SIGTERM)
        stage_end = max(end, time.monotonic() + GRACE_S)
        while stage:
            progress(left)
            waited = stage[0].process.wait(min(LOOK_S, max(stage_end - time.monotonic(), 0)))
            if waited:
                left.remove(stage.pop(0))
            elif hurry():
                end = stage_end = min(stage_end, time.monotonic() + GRACE_S)
                _again(stage)
                hurry = _never
            elif time.monotonic() >= stage_end:
                killed += [child.instance for child in stage]
                _kill(stage)
                left = [child for child in left if child not in stage]
                stage = []
    return killed


def _again(children: Sequence[Child]) -> None:
    """A second SIGTERM means: without draining."""
    for child in children:
        child.process.send(signal.SIGTERM)


def _kill(children: Sequence[Child]) -> None:
    for child in children:
        child.process.kill_group()
    for child in children:
        child.process.wait(GRACE_S)


def _never() -> bool:
    return False

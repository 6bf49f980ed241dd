"""The garbage collector of a daemon that makes thousands of objects a second and few cycles."""

from __future__ import annotations

import gc

YOUNG = 10_000  # new objects between two looks at the young ones, each well below a millisecond
OLD = 50, 100  # times more seldom each, for what is older


def collect_rarely() -> None:
    """Leave what a daemon has when it is ready out of all collections, and look seldom.

    With the defaults a fifth of a balancer's time goes into walking over stories that are kept.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *OLD)

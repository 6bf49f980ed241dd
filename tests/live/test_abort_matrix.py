"""A client leaves: in each stage of each side, while the peer is well, dead or frozen.

The side that was left forgets the room within one step, whatever its peer does; once the peer is
back, every pool of both is as at the start, and the next text is right.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import pytest

from tests.support.cluster import Cluster, eventually, kill
from tests.support.faults import (
    Client,
    Right,
    arm,
    ask,
    clear,
    frozen,
    healthy,
    is_empty,
    prompt_of,
    rooms_in,
)

pytestmark = pytest.mark.live
POOL_PAGES = 128
STEP_S = 2.0  # a step takes 0.1 s here; the rest is the way from the client to the core
OTHER = {"p0": "d0", "d0": "p0"}


@dataclass(frozen=True, slots=True)
class Stage:
    """How a room comes to stand in a stage of a side."""

    side: str
    name: str
    faults: tuple[tuple[str, str, dict[str, float]], ...]  # (instance, fault, more)
    holds: bool = False  # a write stands still, and the room with it, until it is cleared


SLOW = {"seconds": 0.1, "times": 0}
STAGES = (
    Stage("p0", "bootstrap", (("d0", "pages.shrink", {"amount": POOL_PAGES}),)),
    Stage("p0", "waiting", (("p0", "pages.shrink", {"amount": POOL_PAGES}),)),
    Stage("p0", "forward", (("p0", "engine.delay", SLOW),)),
    Stage("p0", "inflight", (("p0", "write.freeze", {"seconds": 0, "times": 0}),), holds=True),
    Stage("d0", "prealloc", (("d0", "pages.shrink", {"amount": POOL_PAGES}),)),
    Stage("d0", "transfer", (("p0", "pages.shrink", {"amount": POOL_PAGES}),)),
    Stage("d0", "prebuilt", (("d0", "engine.delay", {"seconds": 0.5, "times": 0}),)),
    Stage("d0", "running", (("d0", "engine.delay", SLOW),)),
)
LONG = [pytest.param("dead", marks=pytest.mark.long)]
CELLS = [
    pytest.param(
        stage,
        peer,
        id=f"{stage.side}-{stage.name}-{peer}",
        marks=pytest.mark.long
        if peer == "dead" and stage.name not in ("inflight", "transfer")
        else (),
    )
    for stage in STAGES
    for peer in ("well", "frozen", "dead")
]


def arranged(cluster: Cluster, stage: Stage, stack: contextlib.ExitStack) -> Client:
    """Bring a room into the stage; return its client."""
    for instance, fault, more in stage.faults:
        arm(cluster, instance, fault, **more)
    if stage.name == "prebuilt":  # it joins only between two steps of another room
        first = ask(cluster, prompt_of(8, 1), 60)
        stack.callback(first.leave)
        assert eventually(lambda: rooms_in(cluster, "d0", "running") == 1, 10)
    length = 200 if stage.name == "forward" else 24
    client = ask(cluster, prompt_of(length, 2), 200)
    stack.callback(client.leave)
    assert eventually(lambda: rooms_in(cluster, stage.side, stage.name) == 1, 10), cluster.status(
        stage.side
    )
    return client


@pytest.mark.parametrize(("stage", "peer"), CELLS)
def test_a_client_that_leaves_frees_everything(
    pair: Cluster, right: Right, stage: Stage, peer: str
) -> None:
    other = OTHER[stage.side]
    with contextlib.ExitStack() as stack:
        client = arranged(pair, stage, stack)
        pids = pair.daemon_pids(other)
        if peer == "frozen":
            stack.enter_context(frozen(pids))
        elif peer == "dead":
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
        client.leave()
        left_s = time.monotonic()
        if not stage.holds:
            assert eventually(lambda: rooms_in(pair, stage.side, stage.name) == 0, STEP_S), (
                pair.status(stage.side)
            )
        elif peer == "well":
            assert is_empty(pair, other)
        took_s = time.monotonic() - left_s
        print(f"{stage.side} {stage.name}, peer {peer}: gone after {took_s:.2f} s")
        if stage.side == "p0" or peer == "well":
            clear(pair, "p0")
    clear(pair, "p0", "d0")
    healthy(pair, right, within_s=60)

"""Stages of a room, and the faults that make one stand there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from tests.support.cluster import Cluster, eventually
from tests.support.faults import Client, arm, ask, prompt_of, rooms_in

POOL_PAGES = 128  # of each worker of the clusters that take faults


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


def arranged(
    cluster: Cluster,
    stage: Stage,
    stack: contextlib.ExitStack,
    *,
    new: int = 200,
    stream: bool = False,
) -> tuple[Client, list[int]]:
    """Bring a room into the stage; return its client and its prompt."""
    for instance, fault, more in stage.faults:
        arm(cluster, instance, fault, **more)
    if stage.name == "prebuilt":  # it joins only between two steps of another room
        first = ask(cluster, prompt_of(8, 1), 60)
        stack.callback(first.leave)
        assert eventually(lambda: rooms_in(cluster, "d0", "running") == 1, 10)
    prompt = prompt_of(200 if stage.name == "forward" else 24, 2)
    client = ask(cluster, prompt, new, stream=stream)
    stack.callback(client.leave)
    assert eventually(lambda: rooms_in(cluster, stage.side, stage.name) == 1, 10), cluster.status(
        stage.side
    )
    return client, prompt

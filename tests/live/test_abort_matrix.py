"""A client leaves: in each stage of each side, while the peer is well, dead or frozen.

The side that was left forgets the room within one step, whatever its peer does; once the peer is
back, every pool of both is as at the start, and the next text is right.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.support.cluster import Cluster, eventually, kill
from tests.support.faults import Right, clear, frozen, healthy, is_empty, rooms_in
from tests.support.stages import STAGES, Stage, arranged

pytestmark = pytest.mark.live
STEP_S = 2.0  # a step takes 0.1 s here; the rest is the way from the client to the core
OTHER = {"p0": "d0", "d0": "p0"}


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


@pytest.mark.parametrize(("stage", "peer"), CELLS)
def test_a_client_that_leaves_frees_everything(
    pair: Cluster, right: Right, stage: Stage, peer: str
) -> None:
    other = OTHER[stage.side]
    with contextlib.ExitStack() as stack:
        client, _ = arranged(pair, stage, stack)
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

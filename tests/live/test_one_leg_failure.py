"""Something breaks on one side: the room fails on both with the reason, the daemon goes on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.cluster import Cluster, eventually, get
from tests.support.faults import Right, arm, ask, is_clean, is_empty, prompt_of

pytestmark = pytest.mark.live
PROMPT = prompt_of(40)
OTHER = {"p0": "d0", "d0": "p0"}

# fault -> (cause, stage on prefill, stage on decode)
BREAKS = {
    "intake.raise": ("internal.error", "intake", "intake"),
    "engine.raise": ("engine.failed", "forward", "running"),
    "engine.reject": ("engine.failed", "forward", "running"),
    "publish.raise": ("internal.error", "publish", "publish"),
}


def stories(cluster: Cluster, side: str, room: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = get(f"{cluster.url(side)}/rooms/{room}")["stories"]
    return told


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("side", ["p0", "d0"])
@pytest.mark.parametrize("fault", [*BREAKS, "lane.raise"])
def test_the_room_fails_on_both_sides_and_the_daemon_goes_on(
    pair: Cluster, right: Right, fault: str, side: str, way: str
) -> None:
    epochs = {name: row["epoch"] for name, row in pair.instances().items()}
    arm(pair, side, fault)
    ended = ask(pair, PROMPT, stream=way == "stream").end()
    if fault == "lane.raise":
        wanted = {
            "p0": ("transfer.failed", {"forward", "inflight"}, "d0"),
            "d0": ("engine.failed", {"running"}, "d0"),
        }[side]
    else:
        cause, *stages = BREAKS[fault]
        wanted = (cause, {stages[side == "d0"]}, side if fault != "intake.raise" else None)
    error = ended.error
    if error is None and (fault, side) == ("publish.raise", "p0"):
        assert is_clean(ended, right.ids(PROMPT))  # decode had all and was faster
        return
    assert error is not None, ended
    assert (error["cause"], error["peer"]) == (wanted[0], wanted[2]), error
    assert error["stage"] in wanted[1]
    assert error["room"]
    assert fault in error["message"] or "Encoding" in error["message"], error
    assert is_clean(ended, right.ids(PROMPT))
    for name in ("p0", "d0"):
        assert is_empty(pair, name), pair.status(name)
    assert time.monotonic() - ended.at_s < 2.5
    if fault not in ("intake.raise", "publish.raise"):
        (story,) = stories(pair, side, error["room"])
        assert story["failure"]["cause"] == wanted[0]
    assert ask(pair, PROMPT).end().ids == right.ids(PROMPT)
    assert {name: row["epoch"] for name, row in pair.instances().items()} == epochs


@pytest.mark.parametrize("side", ["p0", "d0"])
def test_a_defect_of_the_scheduler_ends_the_instance_which_says_why_and_comes_back(
    pair: Cluster, right: Right, side: str
) -> None:
    before = pair.instances()
    arm(pair, side, "scheduler.raise")
    ended = ask(pair, PROMPT).end()
    error = ended.error
    assert error is not None
    # The rank's last words and its peer's discovery run side by side; either is a true cause.
    assert error["cause"] in ("instance.stopping", "peer.died"), error
    assert error["peer"] == side
    if error["cause"] == "instance.stopping":
        assert "scheduler.raise" in error["message"]
    said = pair.pdctl("logs", side, "-n", "200").stdout
    assert "scheduler.raise" in said
    assert eventually(lambda: pair.is_idle(OTHER[side]), 10)

    def is_back() -> bool:
        row = pair.instances().get(side, {})
        return row.get("epoch") != before[side]["epoch"] and row.get("state") == "ready"

    assert eventually(is_back, 40)
    assert pair.instances()[OTHER[side]]["epoch"] == before[OTHER[side]]["epoch"]

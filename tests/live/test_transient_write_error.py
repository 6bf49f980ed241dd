"""A write fails once: its room fails or is served, and the pair needs no human to serve again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cluster import Cluster
from tests.support.faults import Ended, Right, arm, ask, is_clean, prompt_of

pytestmark = pytest.mark.live


@pytest.mark.parametrize(("length", "times"), [(5, 1), (40, 1), (200, 1), (40, 3)])
def test_the_next_request_is_served(pair: Cluster, right: Right, length: int, times: int) -> None:
    prompt = prompt_of(length, 4)
    arm(pair, "p0", "write.fail", times=times)
    failed = [ask(pair, prompt).end() for _ in range(times)]
    for ended in failed:
        assert ended.error is not None, "a broken write is no success"
        assert ended.error["cause"] == "transfer.failed"
        assert ended.error["retry"] is True
        assert ended.error["peer"] == "d0"
        assert ended.error["room"]
    if times == 1:
        ended = ask(pair, prompt).end()
        assert ended.ids == right.ids(prompt), ended
    # after three in a row the peer is left alone for a while, then tried anew: see the end of pair


def test_the_other_rooms_of_the_same_pair_are_served(pair: Cluster, right: Right) -> None:
    prompts = [prompt_of(60 + n, 5) for n in range(8)]
    arm(pair, "p0", "write.fail")

    def served(prompt: list[int]) -> Ended:
        return ask(pair, prompt).end()

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(served, prompts))
    for prompt, ended in zip(prompts, ends, strict=True):
        assert is_clean(ended, right.ids(prompt)), ended
    good = sum(ended.error is None for ended in ends)
    print(f"one write of eight rooms failed: {good} of 8 were served")
    assert good == 7


@pytest.mark.parametrize(
    "fault",
    ["write.delay", "message.duplicate", "message.reorder", "message.corrupt", "message.drop"],
)
def test_what_is_late_lost_or_twice_changes_no_text(
    pair: Cluster, right: Right, fault: str
) -> None:
    for side in ("p0", "d0"):
        more = {"seconds": 0.2} if fault == "write.delay" else {}
        lasting = fault in ("message.duplicate", "message.reorder")
        if not (fault == "write.delay" and side == "d0"):
            arm(pair, side, fault, times=0 if lasting else 1, **more)
    headers = {"X-Request-Timeout": "5"}
    for seed in range(3):
        prompt = prompt_of(30, 20 + seed)
        ended = ask(pair, prompt, headers=headers).end()
        assert is_clean(ended, right.ids(prompt)), ended
        if fault in ("write.delay", "message.duplicate", "message.reorder"):
            assert ended.error is None, ended

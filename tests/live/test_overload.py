"""Eight times what the pair holds, at once: every request ends, the admitted begin in time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.faults import Ended, Right, arm, ask, clear, healthy, prompt_of

pytestmark = pytest.mark.live
POOL_PAGES = 128
CAPACITY = 8  # rooms, max_rooms of the pair
BURST = 8 * CAPACITY
QUEUE_S = 20.0
SLACK_S = 5.0  # the handshake, the forward, and a machine with other work


@pytest.mark.parametrize("memory", ["ample", "scarce"])
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_every_request_of_a_burst_ends_well_or_is_told_when_to_come_back(
    pair: Cluster, right: Right, way: str, memory: str
) -> None:
    arm(pair, "p0", "engine.delay", seconds=0.02, times=0)
    if memory == "scarce":  # two rooms fit, the others queue, and some of them for too long
        arm(pair, "d0", "pages.shrink", amount=POOL_PAGES - 14)
        arm(pair, "d0", "deadlines.scale", amount=0.03)
    prompts = [prompt_of(16 + n % 5 * 16, 7) for n in range(BURST)]
    for prompt in prompts[:5]:
        right.ids(prompt, 12)

    def asked(prompt: list[int]) -> tuple[float, Ended]:
        begin_s = time.monotonic()
        return begin_s, ask(pair, prompt, 12, stream=way == "stream").end()

    with ThreadPoolExecutor(BURST) as pool:
        ends = list(pool.map(asked, prompts))
    served = refused = 0
    slowest_s = 0.0
    for prompt, (begin_s, ended) in zip(prompts, ends, strict=True):
        if ended.error is None:
            assert ended.ids == right.ids(prompt, 12), ended
            served += 1
            slowest_s = max(slowest_s, (ended.first_s or ended.at_s) - begin_s)
        else:
            assert ended.status in (429, 503), ended
            assert int(ended.retry_after or 0) >= 1
            assert ended.error["cause"] in ("queue.full", "queue.timeout"), ended.error
            assert ended.error["retry"] is True
            refused += 1
    counts = f"{served} served, {refused} refused"
    print(f"{memory}, {BURST} at once: {counts}, slowest begin {slowest_s:.2f} s")
    assert served >= (CAPACITY // 2 if memory == "ample" else 1)
    assert refused, "the burst did not fill the pair"
    assert slowest_s < QUEUE_S + SLACK_S
    clear(pair, "p0", "d0")
    assert eventually(lambda: pair.is_idle("p0") and pair.is_idle("d0"), 10)


def test_those_that_come_back_are_all_served_in_the_end(pair: Cluster, right: Right) -> None:
    prompts = [prompt_of(20 + n % 4 * 10, 8) for n in range(3 * CAPACITY)]
    for prompt in prompts[:4]:
        right.ids(prompt)

    def until_served(prompt: list[int]) -> int:
        for tries in range(60):
            ended = ask(pair, prompt).end()
            if ended.error is None:
                assert ended.ids == right.ids(prompt)
                return tries + 1
            assert ended.status in (429, 503), ended
            time.sleep(min(1.0, float(ended.retry_after or 1)) / 2)
        raise AssertionError("refused sixty times")

    with ThreadPoolExecutor(len(prompts)) as pool:
        tries = list(pool.map(until_served, prompts))
    print(f"{len(prompts)} clients that come back: at most {max(tries)} tries")
    healthy(pair, right)

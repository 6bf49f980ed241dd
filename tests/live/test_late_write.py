"""A write that prefill has given up lands when decode thaws, and nobody's text changes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.faults import Right, arm, ask, clear, frozen, is_clean, prompt_of, rooms_left

pytestmark = pytest.mark.live
LONG = prompt_of(400, 3)
ROUNDS = 2
SETTLE_S = 0.5  # settle_s of the pair


def test_a_late_write_lands_in_pages_that_nobody_has_yet(pair: Cluster, right: Right) -> None:
    rank = pair.daemon_pids("d0")[-1]
    shown = 0
    for _ in range(ROUNDS):
        arm(pair, "p0", "engine.delay", seconds=0.02, times=0)
        client = ask(pair, LONG)
        assert eventually(lambda: pair.status("p0")["rooms"]["forward"] == 1, 10)
        with frozen([rank]):
            ended = client.end()  # prefill's write is cut after its time; the client is told
            error = ended.error
            assert error is not None
            assert is_clean(ended, right.ids(LONG))
            shown += error["cause"] == "transfer.failed"
            assert eventually(lambda: not sum(pair.status("p0")["rooms"].values()), 5)
        clear(pair, "p0")
        reuse_every_page(pair, right)
        assert eventually(lambda: pair.is_idle("d0"), 20), pair.status("d0")
    assert shown, "no write was ever cut"
    print(f"late writes: {ROUNDS} freezes, {shown} writes cut, every text right")


def reuse_every_page(cluster: Cluster, right: Right) -> None:
    """Run rooms that together need more than the whole pool, at once, from the thaw on."""
    prompts = [prompt_of(length, 10 + length) for length in range(100, 340, 15)]
    pages = sum(-(-(len(prompt) + 8) // 16) for prompt in prompts)
    assert pages > cluster.status("d0")["pages_total"], "not every page is used anew"
    with ThreadPoolExecutor(6) as pool:
        for prompt, ended in zip(
            prompts, pool.map(lambda one: ask(cluster, one).end(), prompts), strict=True
        ):
            assert ended.status == 200, ended
            assert ended.ids == right.ids(prompt)


def test_pages_stay_in_quarantine_for_as_long_as_a_write_stands_still(
    pair: Cluster, right: Right
) -> None:
    prompt = prompt_of(60, 5)
    arm(pair, "p0", "write.freeze")
    arm(pair, "d0", "deadlines.scale", amount=0.05)
    ended = ask(pair, prompt).end()
    assert ended.error is not None
    assert ended.error["cause"] in ("progress.timeout", "queue.timeout"), ended.error
    assert rooms_left(pair, "d0") == 0
    held = quarantined(pair)
    assert held == -(-len(prompt) // 16), "its pages are not in quarantine"
    told_s = time.monotonic()
    never = eventually(lambda: quarantined(pair) != held, 4 * SETTLE_S)
    assert not never, f"released after {time.monotonic() - told_s:.2f} s with the write under way"
    assert f"d0 has {held} pages in quarantine" in pair.pdctl("status").stdout
    clear(pair, "p0", "d0")
    assert eventually(lambda: quarantined(pair) == 0, 10)
    reuse_every_page(pair, right)


def quarantined(cluster: Cluster) -> int:
    count: int = cluster.status("d0")["pages"]["quarantined"]
    return count

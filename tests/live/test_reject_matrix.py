"""Each reason to refuse, on each side: the status, the body, and the end of the other leg."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from daemons.protocol.causes import HTTP_STATUS, RETRY_IS_SENSIBLE, Cause
from tests.support.cluster import Cluster, eventually
from tests.support.faults import (
    Client,
    Ended,
    Right,
    arm,
    ask,
    body,
    clear,
    is_clean,
    is_empty,
    prompt_of,
    rooms_left,
)

pytestmark = pytest.mark.live
PROMPT = prompt_of(24)
NEW = 24
POOL_PAGES = 128
QUICK = 0.05  # of every deadline of the pair
Arrange = Callable[[Cluster], None]


@dataclass(frozen=True, slots=True)
class Case:
    """How a side comes to refuse, and what it says."""

    arrange: Arrange
    cause: Cause
    stages: frozenset[str]
    headers: dict[str, str] | None = None
    asked: dict[str, Any] | None = None  # wishes


def faults(side: str, *orders: tuple[str, dict[str, Any]]) -> Arrange:
    def arrange(cluster: Cluster) -> None:
        for fault, more in orders:
            arm(cluster, side, fault, **more)

    return arrange


def late(cluster: Cluster) -> None:
    """Prefill's words do not reach decode, whose deadlines are short."""
    arm(cluster, "p0", "message.drop", message="Progress", times=0)
    arm(cluster, "d0", "deadlines.scale", amount=QUICK)


SHRINK = ("pages.shrink", {"amount": POOL_PAGES})
HURRY = ("deadlines.scale", {"amount": QUICK})
SLOW = ("engine.delay", {"seconds": 0.3, "times": 0})
IMPATIENT = {"X-Request-Timeout": "0.6"}

CASES: dict[tuple[str, str], Case] = {
    ("engine", "p0"): Case(
        faults("p0", ("engine.reject", {})), Cause.ENGINE_FAILED, frozenset({"forward"})
    ),
    ("engine", "d0"): Case(
        faults("d0", ("engine.reject", {})), Cause.ENGINE_FAILED, frozenset({"running"})
    ),
    ("intake", "p0"): Case(
        faults("p0", ("intake.raise", {})), Cause.INTERNAL, frozenset({"intake"})
    ),
    ("intake", "d0"): Case(
        faults("d0", ("intake.raise", {})), Cause.INTERNAL, frozenset({"intake"})
    ),
    ("queue", "p0"): Case(faults("p0", SHRINK, HURRY), Cause.QUEUE_TIMEOUT, frozenset({"waiting"})),
    ("queue", "d0"): Case(
        faults("d0", SHRINK, HURRY), Cause.QUEUE_TIMEOUT, frozenset({"prealloc"})
    ),
    ("total", "p0"): Case(
        faults("p0", SLOW), Cause.TOTAL_TIMEOUT, frozenset({"forward", "transfer"}), IMPATIENT
    ),
    ("total", "d0"): Case(
        faults("d0", SLOW), Cause.TOTAL_TIMEOUT, frozenset({"running"}), IMPATIENT
    ),
    ("never-came", "p0"): Case(
        lambda cluster: (
            arm(cluster, "d0", "message.drop", message="Destination", times=0),
            arm(cluster, "p0", *HURRY[:1], **HURRY[1]),
        )[0],
        Cause.PEER_NEVER_CAME,
        frozenset({"bootstrap"}),
    ),
    ("never-came", "d0"): Case(late, Cause.PEER_NEVER_CAME, frozenset({"transfer"})),
    ("progress", "p0"): Case(
        faults("p0", ("write.freeze", {"seconds": 4, "times": 1}), HURRY),
        Cause.PROGRESS_TIMEOUT,
        frozenset({"inflight"}),
    ),
    ("invalid", "both"): Case(
        lambda _: None,
        Cause.REQUEST_INVALID,
        frozenset({"intake"}),
        asked={"temperature": -1},
    ),
    ("too-long", "both"): Case(
        lambda _: None,
        Cause.REQUEST_TOO_LONG,
        frozenset({"intake"}),
        asked={"max_new_tokens": 5000},
    ),
}


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize(("reason", "side"), CASES, ids=["-".join(case) for case in CASES])
def test_a_refusal_has_its_status_and_body_and_ends_the_other_leg(
    pair: Cluster, right: Right, reason: str, side: str, way: str
) -> None:
    case = CASES[reason, side]
    case.arrange(pair)
    client = ask(
        pair, PROMPT, NEW, stream=way == "stream", headers=case.headers, **(case.asked or {})
    )
    ended = client.end()
    check(ended, case.cause, case.stages)
    assert is_clean(ended, right.ids(PROMPT, NEW))
    if side != "both" and reason != "total":
        assert ended.error is not None
        assert ended.error["room"]
    for name in ("p0", "d0"):
        if (reason, name) != ("progress", "p0"):  # its write stands still; until then it holds it
            assert is_empty(pair, name), pair.status(name)
            assert time.monotonic() - ended.at_s < 2.5


def check(ended: Ended, cause: Cause, stages: frozenset[str]) -> None:
    """Fail unless the error is the promised one."""
    error = ended.error
    assert error is not None, ended
    assert error["cause"] == cause, error
    assert error["stage"] in stages, error
    assert error["retry"] == (cause in RETRY_IS_SENSIBLE)
    assert error["code"] == HTTP_STATUS[cause]
    if not ended.ids:
        assert ended.status == HTTP_STATUS[cause]
    if ended.status == 503:
        assert int(ended.retry_after or 0) >= 1


@pytest.mark.parametrize("way", ["whole", "stream"])
def test_a_full_house_is_503_with_a_time_to_come_back(
    pair: Cluster, right: Right, way: str
) -> None:
    arm(pair, "d0", "pages.shrink", amount=POOL_PAGES)
    held = [ask(pair, PROMPT) for _ in range(8)]
    assert eventually(lambda: rooms_left(pair, "p0") == rooms_left(pair, "d0") == 8)
    ended = ask(pair, PROMPT, stream=way == "stream").end()
    check(ended, Cause.QUEUE_FULL, frozenset({"prealloc", "bootstrap", "dispatch", "intake"}))
    clear(pair, "d0")
    for client in held:
        assert client.end().ids == right.ids(PROMPT)


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("side", ["p0", "d0"])
@pytest.mark.parametrize("reason", ["duplicate", "strange-phone-book", "no-room"])
def test_what_only_one_worker_is_told_is_refused_there(
    pair: Cluster, reason: str, side: str, way: str
) -> None:
    arm(pair, "d0", "pages.shrink", amount=POOL_PAGES)
    url = f"{pair.url(side)}/generate"
    asked = {**body(PROMPT, stream=way == "stream"), "bootstrap_room": random.getrandbits(50) + 1}
    asked["bootstrap_instance"] = "p0"
    with contextlib.ExitStack() as stack:
        if reason == "duplicate":
            first = Client(url, asked)
            stack.callback(first.leave)
            assert eventually(lambda: rooms_left(pair, side) == 1)
            wanted = Cause.REQUEST_DUPLICATE
        elif reason == "strange-phone-book":
            asked["bootstrap_host"] = "203.0.113.9"
            wanted = Cause.REQUEST_INVALID
        else:
            del asked["bootstrap_room"]
            wanted = Cause.REQUEST_INVALID
        ended = Client(url, asked).end()
        check(ended, wanted, frozenset({"intake"}))
    assert is_empty(pair, side)

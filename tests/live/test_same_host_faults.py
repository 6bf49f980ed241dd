"""The fault matrices over the ways that stay on the host, ``auto`` among them: the default.

There a write has landed when it returns and a frozen peer takes bytes like a running one, so what
goes wrong is different: no byte is late, but whoever was stopped in the middle of a write goes on
with it when it thaws. Its pages must wait for that. The matrices beside this file go over Mooncake.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.live.conftest import CHAOS
from tests.live.test_late_write import reuse_every_page
from tests.support.backends import BETWEEN, NEEDS
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, get, kill, running
from tests.support.faults import (
    Right,
    arm,
    ask,
    clear,
    frozen,
    healthy,
    is_clean,
    is_empty,
    prompt_of,
    rooms_in,
    rooms_left,
)
from tests.support.stages import STAGES, arranged

pytestmark = pytest.mark.live
LONG = prompt_of(400, 3)  # fifty chunks
PAGES = 25  # of LONG
INFLIGHT = next(stage for stage in STAGES if stage.name == "inflight")
STOPPED_S = 1.5  # three times settle_s
BACK_S = 120.0
NEAR = [name for name in BETWEEN if "/" not in name and name != "mooncake"]
DEATHS = ("peer.died", "peer.unreachable", "lb.worker_gone", "instance.stopping", "transfer.failed")


def over(*short: str) -> pytest.MarkDecorator:
    """Go over all of these ways with --long, else over some."""
    cells = []
    for name in NEAR:
        marks = [NEEDS[name]] if name in NEEDS else []
        marks += [] if name in short else ["long"]
        cells.append(pytest.param(name, marks=[getattr(pytest.mark, mark) for mark in marks]))
    return pytest.mark.parametrize("built", cells, indirect=True, scope="module")


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A pair over one backend."""
    sections = {**CHAOS, "transfer": {"backend": request.param, "write_timeout_s": 2}}
    folder = tmp_path_factory.mktemp(f"near-{request.param}")
    with running(folder, str(checkpoint("llama")), **sections) as cluster:
        yield cluster


@pytest.fixture
def near(built: Cluster, right: Right) -> Iterator[Cluster]:
    """The same, well before and after each test."""
    healthy(built, right, within_s=BACK_S)
    yield built
    clear(built, "p0", "d0")
    healthy(built, right, within_s=BACK_S)


def quarantined(cluster: Cluster) -> int:
    count: int = cluster.status("d0")["pages"]["quarantined"]
    return count


@over(*NEAR)
def test_the_bytes_stay_on_the_host(near: Cluster, right: Right) -> None:
    ended = ask(near, prompt_of(40, 1)).end()
    assert ended.ids == right.ids(prompt_of(40, 1))
    room = ended.answer["meta_info"]["bootstrap_room"]
    (story,) = get(f"{near.url('p0')}/rooms/{room}")["stories"]
    assert story["facts"]["transport"] not in ("tcp", "")


@over("auto", "cma")
def test_a_prefill_stopped_in_a_write_holds_its_pages_until_it_goes_on(
    near: Cluster, right: Right
) -> None:
    before = near.epochs()
    arm(near, "p0", "engine.delay", seconds=0.02, times=0)
    client = ask(near, LONG)
    assert eventually(lambda: rooms_in(near, "p0", "forward") == 1, 10)
    rank = near.daemon_pids("p0")[-1]
    with frozen([rank]):
        ended = client.end()  # decode finds that nobody answers
        assert ended.error is not None
        assert ended.error["peer"] == "p0", ended.error
        assert is_clean(ended, right.ids(LONG))
        assert rooms_left(near, "d0") == 0
        assert quarantined(near) == PAGES
        freed = eventually(lambda: quarantined(near) != PAGES, STOPPED_S)
        assert not freed, "released while the writer may go on"
    clear(near, "p0")
    assert eventually(lambda: quarantined(near) == 0, 20)
    healthy(near, right)
    reuse_every_page(near, right)
    assert near.epochs() == before


@over("auto")
def test_a_decode_frozen_under_writes_thaws_to_the_right_text(near: Cluster, right: Right) -> None:
    before = near.epochs()
    arm(near, "p0", "engine.delay", seconds=0.02, times=0)
    client = ask(near, LONG)
    assert eventually(lambda: rooms_in(near, "p0", "forward") == 1, 10)
    with frozen(near.daemon_pids("d0")[-1:]):
        assert eventually(lambda: rooms_left(near, "p0") == 0, 10), "its writes wait for the peer"
    ended = client.end()
    assert is_clean(ended, right.ids(LONG)), ended
    clear(near, "p0")
    reuse_every_page(near, right)
    assert eventually(lambda: near.is_idle("d0"), 20), near.status("d0")
    assert near.epochs() == before


@over("auto")
@pytest.mark.parametrize("victim", ["p0", "d0"])
def test_a_kill_in_a_write_costs_its_own_rooms_and_its_replacement_serves(
    near: Cluster, right: Right, victim: str
) -> None:
    before = near.epochs()
    other = {"p0": "d0", "d0": "p0"}[victim]
    with contextlib.ExitStack() as stack:
        client, prompt = arranged(near, INFLIGHT, stack, new=40, stream=True)
        kill(near.daemon_pids(victim)[-1])
        killed_s = time.monotonic()
        clear(near, *{"p0"} - {victim})  # the write goes on, into memory that is gone
        ended = client.end()
    assert is_clean(ended, right.ids(prompt, 40)), ended
    if ended.error is not None:
        assert ended.error["cause"] in DEATHS, ended.error
        assert ended.at_s - killed_s < 10
    assert eventually(lambda: near.is_idle(other), 20), near.status(other)
    healthy(near, right, within_s=BACK_S)
    after = near.epochs()
    assert {name for name in before if after[name] != before[name]} == {victim}
    reuse_every_page(near, right)


@over("auto")
def test_one_transient_error_needs_no_human(near: Cluster, right: Right) -> None:
    prompt = prompt_of(200, 4)
    arm(near, "p0", "write.fail")
    error = ask(near, prompt).end().error
    assert error is not None
    assert (error["cause"], error["peer"], error["retry"]) == ("transfer.failed", "d0", True)
    assert ask(near, prompt).end().ids == right.ids(prompt)


@over("auto")
@pytest.mark.parametrize("side", ["p0", "d0"])
def test_one_leg_that_breaks_ends_both(near: Cluster, right: Right, side: str) -> None:
    prompt = prompt_of(40, 5)
    arm(near, side, "lane.raise")
    ended = ask(near, prompt).end()
    assert ended.error is not None
    assert "lane.raise" in ended.error["message"]
    assert is_empty(near, "p0")
    assert is_empty(near, "d0")
    assert ask(near, prompt).end().ids == right.ids(prompt)


@over("auto")
def test_a_client_that_leaves_during_a_write_into_a_frozen_decode_frees_everything(
    near: Cluster, right: Right
) -> None:
    with contextlib.ExitStack() as stack:
        client, _ = arranged(near, INFLIGHT, stack)
        stack.enter_context(frozen(near.daemon_pids("d0")))
        client.leave()
        clear(near, "p0")
        assert is_empty(near, "p0")
    reuse_every_page(near, right)

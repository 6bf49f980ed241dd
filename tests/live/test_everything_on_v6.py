"""The same once more on ::1, with automatic ports, two prefills and two decodes on one host."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cluster import Cluster, eventually, kill
from tests.support.faults import (
    Client,
    Ended,
    Right,
    arm,
    ask,
    body,
    clear,
    frozen,
    healthy,
    is_clean,
    prompt_of,
)

pytestmark = pytest.mark.live
WORKERS = ("p0", "p1", "d0", "d1")
LENGTHS = (1, 15, 16, 17, 33, 100)
NEW = 10


@pytest.fixture
def fleet(chaos_fleet: Cluster, right: Right) -> Cluster:
    healthy(chaos_fleet, right, workers=WORKERS, within_s=60)
    return chaos_fleet


def load(cluster: Cluster, seed: int, *, stream: bool = False) -> list[tuple[list[int], Ended]]:
    """Ask for every length four times at once; return prompts and ends."""
    prompts = [prompt_of(length, seed + n) for length in LENGTHS for n in range(4)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        ends = pool.map(lambda one: ask(cluster, one, NEW, stream=stream).end(), prompts)
        return list(zip(prompts, ends, strict=True))


def test_every_daemon_is_reached_by_v6(fleet: Cluster) -> None:
    rows = fleet.instances()
    assert {rows[name]["http_host"] for name in WORKERS} == {"::1"}
    assert len({rows[name]["http_port"] for name in WORKERS}) == len(WORKERS)
    assert all("[::1]" in fleet.url(name) for name in WORKERS)


@pytest.mark.parametrize("way", ["whole", "stream"])
def test_texts_are_right_and_all_four_workers_share_the_work(
    fleet: Cluster, right: Right, way: str
) -> None:
    before = {name: fleet.status(name)["counters"].get("rooms_done", 0) for name in WORKERS}
    for prompt, ended in load(fleet, 60, stream=way == "stream"):
        assert ended.ids == right.ids(prompt, NEW), ended
    for name in WORKERS:
        assert fleet.status(name)["counters"]["rooms_done"] > before[name], name


@pytest.mark.parametrize("prefill", ["p0", "p1"])
@pytest.mark.parametrize("decode", ["d0", "d1"])
def test_each_of_the_four_pairs_serves(
    fleet: Cluster, right: Right, prefill: str, decode: str
) -> None:
    prompt = prompt_of(40, 61)
    room = 1000 + 10 * int(prefill[1]) + int(decode[1]) + fleet.instances()["lb"]["epoch"]
    asked = {**body(prompt, NEW), "bootstrap_room": room, "bootstrap_instance": prefill}
    legs = [Client(f"{fleet.url(name)}/generate", asked) for name in (prefill, decode)]
    first, whole = (leg.end() for leg in legs)
    assert whole.ids == right.ids(prompt, NEW)
    assert first.ids == whole.ids[:1]


@pytest.mark.parametrize("fault", ["engine.raise", "write.fail", "message.drop", "lane.raise"])
def test_a_fault_in_one_worker_spoils_no_text(fleet: Cluster, right: Right, fault: str) -> None:
    for name in ("p0", "d0"):
        if not (fault == "write.fail" and name == "d0"):
            arm(fleet, name, fault)
    ends = load(fleet, 62)
    clear(fleet, *WORKERS)
    for prompt, ended in ends:
        assert is_clean(ended, right.ids(prompt, NEW)), ended
    good = sum(ended.error is None for _, ended in ends)
    print(f"{fault} on ::1: {good} of {len(ends)} served, the others told why")
    assert good >= len(ends) - 4
    healthy(fleet, right, workers=WORKERS)


@pytest.mark.parametrize("victim", ["p1", "d1"])
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_dead_or_frozen_worker_costs_its_own_rooms_only(
    fleet: Cluster, right: Right, victim: str, how: str
) -> None:
    for name in WORKERS:
        arm(fleet, name, "engine.delay", seconds=0.02, times=0)
    prompts = [prompt_of(60 + n, 63) for n in range(8)]
    for prompt in prompts:
        right.ids(prompt, 30)
    with contextlib.ExitStack() as stack:
        clients = [ask(fleet, prompt, 30, stream=True) for prompt in prompts]
        assert eventually(lambda: sum(fleet.status(victim)["rooms"].values()) > 0, 10)
        pids = fleet.daemon_pids(victim)
        if how == "kill":
            kill(pids[-1])
        else:
            stack.enter_context(frozen(pids))
            others = [name for name in WORKERS if name != victim]
            assert eventually(
                lambda: all(is_idle_but_quarantine(fleet, name) for name in others), 20
            )
    clear(fleet, *({*WORKERS} - {victim} if how == "kill" else WORKERS))
    ends = [client.end() for client in clients]
    for prompt, ended in zip(prompts, ends, strict=True):
        assert is_clean(ended, right.ids(prompt, 30)), ended
    assert any(ended.error is None for ended in ends), "the other pairs did not serve"
    healthy(fleet, right, workers=WORKERS, within_s=60)


def is_idle_but_quarantine(cluster: Cluster, name: str) -> bool:
    """Say whether no room is left that does not hang on the frozen one."""
    rooms = cluster.status(name)["rooms"]
    return sum(rooms.values()) == 0

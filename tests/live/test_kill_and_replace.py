"""Daemons are killed, frozen and told to leave, in each phase of a request.

It costs their own rooms at most: each client has the right text or an error that says why, nobody
else is restarted, and the replacement, at the same address and here before the next heartbeat,
serves. What is frozen and thaws does not mix anything up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import CHAOS
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, kill, running
from tests.support.faults import (
    Right,
    arm,
    ask,
    clear,
    frozen,
    healthy,
    is_clean,
    prompt_of,
    rooms_in,
)
from tests.support.ports import free_port
from tests.support.stages import STAGES, arranged

pytestmark = pytest.mark.live
NEW = 40
WITHIN_S = 10.0  # a client is told of a death
SERVED_S = 60.0  # or served on the replacement, which `pdctl up` starts after up to 30 s
FREEZE_S = 3.0
BACK_S = 120.0  # patience, no promise
CAUSES_OF_A_DEATH = (
    "peer.died",
    "peer.unreachable",
    "lb.worker_gone",
    "instance.stopping",
    "transfer.failed",
)
UNTOLD = ("bootstrap", "forward", "transfer")  # before the first token
BY_NAME = {stage.name: stage for stage in STAGES}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Ports are the file's own, so that a replacement has the address of who was there before."""
    folder: Path = tmp_path_factory.mktemp("kills")
    sections = {
        **CHAOS,
        "timers": {**CHAOS["timers"], "heartbeat_s": 5, "peer_timeout_s": 8, "drain_s": 20},
        "lb": {"port": free_port(), "poll_s": 0.2, "retry_wait_s": 50, "queue_s": 50},
        "prefill": {"p0": {"port": free_port()}},
        "decode": {"d0": {"port": free_port()}},
    }
    with running(folder, str(checkpoint("llama")), **sections) as cluster:
        yield cluster


@pytest.fixture
def cluster(built: Cluster, right: Right) -> Iterator[Cluster]:
    healthy(built, right, within_s=BACK_S)
    yield built
    clear(built, "p0", "d0")
    healthy(built, right, within_s=BACK_S)


def cells(*short: tuple[str, str, str]) -> list[object]:
    """Return every (victim, process, phase); those that are not named are long."""
    phases = ("bootstrap", "forward", "inflight", "transfer", "running")
    whole = [(v, p, phase) for v in ("p0", "d0") for p in ("front", "rank") for phase in phases]
    whole += [(v, "front", phase) for v in ("lb", "bootstrap") for phase in phases]
    return [
        pytest.param(*cell, id="-".join(cell), marks=() if cell in short else pytest.mark.long)
        for cell in whole
    ]


def knows_workers(cluster: Cluster) -> bool:
    """Say whether a phone book that came anew has heard from both workers."""
    try:
        return cluster.epochs().keys() >= {"p0", "d0"}
    except OSError:
        return False


def is_alive_as_before(cluster: Cluster, before: dict[str, int], victim: str) -> bool:
    try:
        now = cluster.epochs()
    except OSError:
        return False
    return all(now.get(name) == epoch for name, epoch in before.items() if name != victim)


def is_left(cluster: Cluster, prefill: str) -> bool:
    """Say whether a prefill has no room that its decode has told where to write."""
    return not any(rooms_in(cluster, prefill, stage) for stage in ("waiting", "forward"))


@pytest.mark.parametrize(
    ("victim", "process", "phase"),
    cells(
        ("p0", "front", "forward"),
        ("p0", "rank", "inflight"),
        ("d0", "rank", "transfer"),
        ("d0", "front", "running"),
        ("lb", "front", "running"),
        ("bootstrap", "front", "running"),
    ),
)
def test_a_kill_costs_the_rooms_of_the_victim_only(
    cluster: Cluster, right: Right, victim: str, process: str, phase: str
) -> None:
    before = cluster.epochs()
    address = cluster.url("d0"), cluster.url("p0")
    with contextlib.ExitStack() as stack:
        client, prompt = arranged(cluster, BY_NAME[phase], stack, new=NEW, stream=True)
        pids = cluster.daemon_pids(victim)
        kill(pids[0 if process == "front" else -1])
        killed_s = time.monotonic()
        if victim == "bootstrap":  # nobody needs it for what is under way
            assert eventually(lambda: knows_workers(cluster), BACK_S)
            killed_s = time.monotonic()
            clear(cluster, "p0", "d0")
        elif victim != "lb":
            if victim == "d0" and phase in UNTOLD:  # else p0 goes on, and tells its first token
                assert eventually(lambda: is_left(cluster, "p0"), BACK_S), cluster.status("p0")
            # whoever takes the room's place shall not stand where it stood
            clear(cluster, *{"p0", "d0"} - {victim})
        end = None
        with contextlib.suppress(OSError, ValueError):
            end = client.end()
    if victim == "lb":
        assert end is None or not end.done, "a connection that broke has no end mark"
    else:
        assert end is not None
        assert is_clean(end, right.ids(prompt, NEW)), end
        assert end.at_s - killed_s < (WITHIN_S if end.error else SERVED_S)
    if victim == "p0" and phase == "running":  # prefill has handed all over
        assert end is not None
        assert end.error is None, end.error
    elif victim in ("p0", "d0") and phase in UNTOLD:
        assert end is not None
        assert end.error is None, end.error
        assert end.ids == right.ids(prompt, NEW), "in a new room, on the replacement"
    elif (victim, phase) == ("p0", "inflight") and end is not None and not end.error:
        assert end.ids == right.ids(prompt, NEW), "nothing was sent yet, and no error was"
    elif victim in ("p0", "d0"):
        assert end is not None
        assert end.error is not None, "its room was on the victim"
        assert end.ids, "with nothing sent a request is tried again"
        assert end.error["room"]
        assert end.error["peer"] == victim, end.error
        assert end.error["cause"] in CAUSES_OF_A_DEATH, end.error
    if victim == "bootstrap":
        assert end is not None
        assert end.error is None, end.error
    clear(cluster, *{"p0", "d0"} - {victim})
    healthy(cluster, right, within_s=BACK_S)
    assert eventually(lambda: is_alive_as_before(cluster, before, victim), 20)
    if victim != "bootstrap":
        assert eventually(lambda: cluster.epochs().get(victim) not in (None, before[victim]), 20)
    assert (cluster.url("d0"), cluster.url("p0")) == address


@pytest.mark.parametrize(
    ("victim", "process", "phase"),
    cells(
        ("p0", "front", "forward"),
        ("p0", "rank", "forward"),
        ("d0", "rank", "transfer"),
        ("d0", "rank", "running"),
        ("lb", "front", "running"),
        ("bootstrap", "front", "forward"),
    ),
)
def test_a_freeze_ends_in_the_right_text_or_a_clean_error(
    cluster: Cluster, right: Right, victim: str, process: str, phase: str
) -> None:
    before = cluster.epochs()
    with contextlib.ExitStack() as stack:
        client, prompt = arranged(cluster, BY_NAME[phase], stack, new=NEW, stream=True)
        pids = cluster.daemon_pids(victim)
        with frozen(pids if process == "front" else pids[-1:]):
            if victim != "bootstrap":  # it is asked where the others are
                clear(cluster, *{"p0", "d0"} - {victim})
            thaws_s = time.monotonic() + FREEZE_S
            assert eventually(lambda: time.monotonic() > thaws_s, FREEZE_S + 1)
        clear(cluster, "p0", "d0")
        end = client.end()
    assert is_clean(end, right.ids(prompt, NEW)), end
    healthy(cluster, right, within_s=BACK_S)
    assert cluster.epochs() == before


@contextlib.contextmanager
def replaced(cluster: Cluster, instance: str) -> Iterator[None]:
    """Start a daemon by hand, at once, where its supervisor sees a good end and does nothing."""
    role = {"p": "prefill", "d": "decode", "l": "lb", "b": "bootstrap"}[instance[0]]
    argv = [sys.executable, "-m", f"daemons.{role}", "--config", str(cluster.file)]
    if role in ("prefill", "decode"):
        argv += ["--instance", instance]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            process.wait(20)


@pytest.fixture(scope="module")
def stand_ins(built: Cluster) -> Iterator[contextlib.ExitStack]:
    """Daemons that were started by hand; they end before the cluster does."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("victim", ["p0", "d0", "lb", "bootstrap"])
def test_who_is_told_to_leave_finishes_first_and_its_replacement_serves(
    built: Cluster, right: Right, stand_ins: contextlib.ExitStack, victim: str
) -> None:
    healthy(built, right, within_s=BACK_S)
    arm(built, "d0", "engine.delay", seconds=0.02, times=0)
    prompt = prompt_of(30, 41)
    client = ask(built, prompt, NEW, stream=True)
    assert eventually(lambda: built.status("d0")["rooms"]["running"] == 1, 10)
    front = built.daemon_pids(victim)[0]
    os.kill(front, signal.SIGTERM)
    end = client.end()
    assert end.error is None, end.error
    assert end.ids == right.ids(prompt, NEW)
    assert eventually(lambda: front not in built.daemon_pids(victim), 20), "it does not leave"
    stand_ins.enter_context(replaced(built, victim))
    clear(built, *{"d0"} - {victim})
    healthy(built, right, within_s=BACK_S)

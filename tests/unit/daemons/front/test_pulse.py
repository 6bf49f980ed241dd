"""Asking the ranks how they are."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons.front import pulse as pulse_module
from daemons.front.ranks import Silent
from daemons.protocol.topology import State
from tests.support.fake_rank import worker_status
from tests.support.front_bench import Bench, front_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


def answers(bench: Bench, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any] | None) -> None:
    async def ask(*_: object) -> list[dict[str, Any]]:
        if body is None:
            raise Silent("no answer from rank 0")
        return [body]

    monkeypatch.setattr(bench.ranks, "ask", ask)


STATUS = {"status": msgspec.to_builtins(worker_status(rooms=2))}


async def test_a_status_is_what_the_rank_says_with_what_the_front_knows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(bench, monkeypatch, STATUS)
    bench.desk.life.enter(State.DRAINING, "")
    status = await bench.pulse.ask()
    assert status.rooms == {"prealloc": 0, "running": 2}
    assert (status.state, status.version, status.model) == ("draining", "0.0.1", "tiny")
    assert bench.desk.meter.status == status


async def test_a_status_says_how_long_rooms_have_once_it_stops(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(bench, monkeypatch, STATUS)
    assert (await bench.pulse.ask()).drain_left_s is None
    bench.desk.life.stop("it was told to stop", 0.0, 60.0)
    left_s = (await bench.pulse.ask()).drain_left_s
    assert left_s is not None
    assert 0 <= left_s <= 60


async def test_an_answer_resets_the_silence_and_none_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.pulse._heard_s -= 100
    answers(bench, monkeypatch, None)
    with pytest.raises(Silent):
        await bench.pulse.ask()
    assert bench.pulse.silent_s() > 99
    answers(bench, monkeypatch, STATUS)
    await bench.pulse.ask()
    assert bench.pulse.silent_s() < 99


@pytest.mark.parametrize("body", [{}, {"status": None}, {"status": {"instance": 5}}])
async def test_a_strange_answer_is_no_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    answers(bench, monkeypatch, body)
    with pytest.raises(Silent, match="strangely"):
        await bench.pulse.ask()


async def test_the_watchdog_is_fed_only_while_the_ranks_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "notify"
    monkeypatch.setattr(pulse_module, "PERIOD_S", 0.001)
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.setblocking(False)
        answers(bench, monkeypatch, STATUS)
        keeping = asyncio.create_task(bench.pulse.keep())
        async with asyncio.timeout(10):
            raw = await asyncio.get_running_loop().sock_recv(manager, 4096)
        assert raw == b"WATCHDOG=1\nSTATUS=ready, 2 rooms, 60 free pages"
        answers(bench, monkeypatch, None)
        while not await _is_quiet(manager):
            pass
        keeping.cancel()


async def _is_quiet(manager: socket.socket) -> bool:
    await asyncio.sleep(0)
    try:
        manager.recv(4096)
    except BlockingIOError:
        return True
    return False


async def test_an_instance_without_ranks_has_a_status(bench: Bench) -> None:
    bench.desk.life.enter(State.STARTING, "")
    status = bench.pulse.without_ranks()
    assert (status.state, status.epoch, status.role) == ("starting", 1, "decode")

"""An instance's life from the start of its ranks to its exit code, with real rank processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
import structlog

from daemons.cluster.load import load
from daemons.cluster.worker import Timers
from daemons.front import course as course_module
from daemons.front import ranks as ranks_module
from daemons.front.desk import Desk
from daemons.front.service import serve
from daemons.protocol.topology import Role
from daemons.runtime.program import Stop
from tests.support.front_bench import FakeBook, front_config, phone_book
from tests.support.tiny_model import tiny_model

RANK = str(Path(__file__).parents[3] / "support" / "fake_rank.py")
DEADLINE_S = 20.0


@dataclass
class Running:
    """A front in this event loop."""

    stop: Stop
    serving: asyncio.Task[int]
    book: FakeBook
    http: aiohttp.ClientSession
    pid_file: Path

    def registered(self, state: str) -> bool:
        return any(put.get("state") == state for put in self.book.registered)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until the phone book, which hears of every change, makes it true."""
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                await self.book.heard.wait()
                self.book.heard.clear()

    async def ready(self) -> str:
        await self.until(lambda: self.registered("ready"))
        put = self.book.registered[0]
        return f"http://{put['http_host']}:{put['http_port']}"

    async def exit_code(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return await self.serving

    @property
    def rank_pid(self) -> int:
        return int(self.pid_file.read_text())


@asynccontextmanager
async def running(tmp_path: Path, *flags: str, **more: Any) -> AsyncIterator[Running]:
    pid_file = tmp_path / "pid"
    rank = (sys.executable, RANK, "--pid-file", str(pid_file), *flags)
    model = tiny_model(tmp_path / "model")
    async with phone_book() as book, aiohttp.ClientSession() as http:
        config = front_config(model, book.url, Role.DECODE, rank_argv=(rank,), **more)
        stop = Stop()
        serving = asyncio.create_task(serve(config, stop))
        try:
            yield Running(stop, serving, book, http, pid_file)
        finally:
            stop.asked.set()
            stop.now.set()
            await asyncio.wait({serving}, timeout=DEADLINE_S)


def body(room: int = 7, **fields: Any) -> dict[str, Any]:
    return {"text": "hi", "bootstrap_room": room, "bootstrap_instance": "p0", **fields}


async def test_an_instance_registers_serves_drains_and_leaves(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        url = await one.ready()
        params = {"max_new_tokens": 3}
        async with one.http.post(f"{url}/generate", json=body(sampling_params=params)) as answer:
            assert (await answer.json())["text"] == "hih"
        one.stop.ask()
        assert await one.exit_code() == 0
        assert one.registered("draining")
        last = one.book.registered[-1]
        assert (last["method"], last["instance"], last["epoch"]) == ("DELETE", "d0", 1)
        assert not _alive(one.rank_pid)


async def test_a_drain_waits_for_open_rooms_and_refuses_new_ones(tmp_path: Path) -> None:
    timers = Timers(notice_s=0.001)
    async with running(tmp_path, "--tokens", "hold", timers=timers) as one:
        url = await one.ready()
        asked = asyncio.create_task(one.http.post(f"{url}/generate", json=body(rid="me")))
        await _open_rooms(one.http, url, 1)
        one.stop.ask()
        await one.until(lambda: one.registered("draining"))
        async with one.http.get(f"{url}/status") as answer:
            assert 0 < (await answer.json())["drain_left_s"] <= timers.drain_s
        async with one.http.post(f"{url}/generate", json=body(8)) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]
        assert not one.serving.done()
        async with one.http.post(f"{url}/abort_request", json={"rid": "me"}) as answer:
            assert answer.status == 200
        assert await one.exit_code() == 0
        async with await asked as answer:
            assert answer.status == 499


@pytest.mark.parametrize("second_signal", [False, True])
async def test_a_drain_ends_at_its_deadline_or_at_a_second_signal(
    tmp_path: Path,
    second_signal: bool,  # noqa: FBT001
) -> None:
    timers = Timers(drain_s=600.0 if second_signal else 0.3)
    async with running(tmp_path, "--tokens", "hold", timers=timers) as one:
        url = await one.ready()
        asked = asyncio.create_task(one.http.post(f"{url}/generate", json=body()))
        await _open_rooms(one.http, url, 1)
        one.stop.ask()
        if second_signal:
            one.stop.ask()
        async with await asked as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["cause"]) == (503, "instance.stopping")
        assert await one.exit_code() == 0


async def test_the_death_of_a_rank_ends_the_instance_and_names_itself_to_every_client(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "--tokens", "hold") as one:
        url = await one.ready()
        asked = asyncio.create_task(one.http.post(f"{url}/generate", json=body()))
        await _open_rooms(one.http, url, 1)
        os.kill(one.rank_pid, signal.SIGKILL)
        async with await asked as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["cause"], error["peer"]) == (503, "instance.stopping", "d0")
        assert "rank 0 was killed by SIGKILL" in error["message"]
        assert await one.exit_code() == 1
        assert one.book.registered[-1]["method"] == "DELETE"


async def test_a_rank_that_dies_while_loading_ends_the_instance(tmp_path: Path) -> None:
    async with running(tmp_path, "--exit-code", "5") as one:
        assert await one.exit_code() == 1
        assert one.book.registered == []


async def test_a_file_that_a_rank_finds_bad_is_not_worth_another_start(tmp_path: Path) -> None:
    async with running(tmp_path, "--exit-code", "78") as one:
        assert await one.exit_code() == 78


async def test_a_decode_serves_a_room_of_its_own_before_it_says_ready(tmp_path: Path) -> None:
    async with running(tmp_path, local_prefill=True) as one:
        await one.ready()


async def test_a_decode_whose_own_room_fails_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course_module, "CANARY_S", 0.05)
    monkeypatch.setattr("daemons.front.rooms.GRACE_S", 0.05)
    async with running(tmp_path, "--tokens", "hold", local_prefill=True) as one:
        assert await one.exit_code() == 1
        assert one.book.registered == []


async def test_a_rank_that_is_never_ready_ends_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course_module, "READY_S", 0.05)
    for name in ("EOF_S", "TERM_S"):
        monkeypatch.setattr(ranks_module, name, 5.0)
    async with running(tmp_path, "--mute") as one:
        assert await one.exit_code() == 1
        assert one.book.registered == []


async def test_ranks_that_do_not_belong_together_end_the_instance(tmp_path: Path) -> None:
    async with running(tmp_path, "--ranks", "2") as one:
        assert await one.exit_code() == 1
        assert one.book.registered == []


async def test_a_signal_while_loading_ends_the_instance_well(tmp_path: Path) -> None:
    async with running(tmp_path, "--mute") as one:
        one.stop.ask()
        assert await one.exit_code() == 0


async def test_an_instance_without_a_phone_book_leaves_well_too(tmp_path: Path) -> None:
    async with running(tmp_path, bootstrap_url="http://127.0.0.1:9") as one:
        async with asyncio.timeout(DEADLINE_S):
            while not one.pid_file.exists():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.01)
        one.stop.ask()
        assert await one.exit_code() == 0


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _open_rooms(http: aiohttp.ClientSession, url: str, wanted: int) -> None:
    """Wait until the rank counts so many rooms."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with http.get(f"{url}/status") as answer:
                if (await answer.json())["rooms"]["running"] == wanted:
                    return


def test_a_reload_takes_over_the_times_of_a_drain(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\ndecode: {d0: {timers: {drain_s: 5}}}\n")
    model = tiny_model(tmp_path / "model")
    config = front_config(model, "http://127.0.0.1:1", Role.DECODE, file=load(path))
    desk = cast(Desk, SimpleNamespace(config=config))
    nobody = cast(Any, None)
    course = course_module.Course(desk, nobody, nobody, nobody)
    path.write_text("name: c\ndecode: {d0: {rows: 9, timers: {drain_s: 7, queue_s: 8}}}\n")
    with structlog.testing.capture_logs() as logs:
        course.reload()
    assert (desk.config.timers.drain_s, desk.config.timers.queue_s) == (7.0, config.timers.queue_s)
    assert [(log["in_force"], log["at_restart"]) for log in logs] == [
        (["timers.drain_s"], ["rows", "timers.queue_s"])
    ]

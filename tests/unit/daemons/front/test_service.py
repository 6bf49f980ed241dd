"""A front as a process: signals, exit codes, and ranks that outlive nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from daemons.cluster.errors import OperatorError
from daemons.front.service import run
from tests.support.front_bench import front_config, phone_book
from tests.support.tiny_model import tiny_model

RANK = str(Path(__file__).parents[3] / "support" / "fake_rank.py")
PROGRAM = """
import sys, msgspec
from daemons.front.config import FrontConfig
from daemons.front.service import run
sys.exit(run(msgspec.json.decode(sys.argv[1], type=FrontConfig)))
"""
DEADLINE_S = 30.0


async def test_a_front_serves_until_sigterm_and_its_log_says_so(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    async with phone_book() as book:
        argv = (sys.executable, RANK, "--pid-file", str(tmp_path / "pid"))
        config = front_config(model, book.url, rank_argv=(argv,))
        front = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, msgspec.json.encode(config).decode(),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(DEADLINE_S):
                await book.heard.wait()
                front.send_signal(signal.SIGTERM)
                out, _ = await front.communicate()
        finally:
            if front.returncode is None:
                front.kill()
        assert front.returncode == 0
    events = [json.loads(line)["event"] for line in out.decode().splitlines()]
    wanted = ["http.listening", "rank.started", "front.ready", "drain.begun", "drain.ended"]
    assert [event for event in events if event in wanted] == wanted
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_front_that_is_killed_takes_its_rank_along(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    async with phone_book() as book:
        argv = (sys.executable, RANK, "--pid-file", str(tmp_path / "pid"))
        config = front_config(model, book.url, rank_argv=(argv,))
        front = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, msgspec.json.encode(config).decode(),
            stdout=asyncio.subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        async with asyncio.timeout(DEADLINE_S):
            await book.heard.wait()
            rank = os.pidfd_open(int((tmp_path / "pid").read_text()))
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(rank, ended.set)
            front.kill()
            await front.wait()
            await ended.wait()
        asyncio.get_running_loop().remove_reader(rank)
        os.close(rank)


def test_a_model_that_is_not_there_is_the_operators_error(tmp_path: Path) -> None:
    config = front_config(tmp_path / "nothing", "http://127.0.0.1:9")
    with pytest.raises(OperatorError, match="nothing"):
        run(config)


def test_a_rank_command_that_is_not_there_is_the_operators_error(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    config = front_config(model, "http://127.0.0.1:9", rank_argv=(("/no/such/program",),))
    with pytest.raises(OperatorError, match="cannot start rank 0"):
        run(config)


def test_an_address_that_is_not_ours_is_an_error(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    config = front_config(model, "http://127.0.0.1:9", bind="192.0.2.1")
    with pytest.raises(OSError, match="assign"):
        run(config)

"""Rank processes: started, watched, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq.asyncio

from daemons.cluster.errors import OperatorError
from daemons.front import ranks as ranks_module
from daemons.front.ranks import Death, Ranks, Silent, how_it_ended
from daemons.protocol.chaos import Fault, FaultOrder
from daemons.protocol.generate import (
    AskFor,
    Chaos,
    FinishReason,
    LastWords,
    Outputs,
    Sampling,
    Snapshot,
    Submit,
)
from tests.support.fake_rank import FakeRank

RANK = str(Path(__file__).parents[3] / "support" / "fake_rank.py")
DEADLINE_S = 20.0


def argv(*flags: str) -> tuple[str, ...]:
    return (sys.executable, RANK, *flags)


@asynccontextmanager
async def running(*argvs: tuple[str, ...]) -> AsyncIterator[tuple[Ranks, asyncio.Queue[Outputs]]]:
    ranks = Ranks(argvs)
    heard: asyncio.Queue[Outputs] = asyncio.Queue()
    ranks.listen(heard.put_nowait, lambda _, __: None)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await ranks.spawn()
            yield ranks, heard
    finally:
        await ranks.close()


async def gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(handle, ended.set)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_ranks_serve_once_all_are_ready_and_end_when_told(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with running(argv("--pid-file", str(file))) as (ranks, heard):
        (ready,) = await ranks.ready()
        assert ready.transport == "loopback"
        ranks.tell(Submit(7, 1, (1,), Sampling(max_tokens=2), "p0", 5.0))
        first, second = await heard.get(), await heard.get()
        assert first.items[0].tokens[0].id == 104
        assert second.items[0].finish is FinishReason.LENGTH
        folder = Path(ranks.links[0].removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not alive(int(file.read_text()))
    assert not folder.exists()


async def test_every_rank_answers_a_question_and_rank_0_speaks_for_all() -> None:
    both = [argv("--rank", str(n), "--ranks", "2") for n in range(2)]
    async with running(*both) as (ranks, heard):
        assert [ready.rank for ready in await ranks.ready()] == [0, 1]
        answers = await ranks.ask(AskFor.STATUS)
        assert [isinstance(answer["status"], dict) for answer in answers] == [True, True]
        ranks.tell(Submit(7, 1, (1,), Sampling(max_tokens=1), "p0", 5.0))
        await heard.get()
        await ranks.ask(AskFor.STATUS)  # both have handled the request by now
        assert heard.empty()


async def test_a_silent_rank_is_named_after_the_deadline() -> None:
    async with running(argv()) as (ranks, _):
        await ranks.ready()
        assert ranks._processes[0].pid
        os.kill(ranks._processes[0].pid, signal.SIGSTOP)
        with pytest.raises(Silent, match="no answer from rank 0"):
            await ranks.ask(AskFor.STATUS, within_s=0.05)
        assert ranks._answers == {}
        os.kill(ranks._processes[0].pid, signal.SIGCONT)


async def test_a_rank_that_ends_is_named_with_its_exit_code() -> None:
    async with running(argv("--exit-code", "3")) as (ranks, _):
        assert await ranks.death == Death(0, "ended with exit code 3", 3)


async def test_the_last_words_of_a_rank_say_how_it_ended() -> None:
    ranks = Ranks([("never", "started")])
    ranks.listen(lambda _: None, lambda _, __: None)
    context = zmq.asyncio.Context()
    rank = FakeRank(context, ranks.links[0])
    await rank.say(LastWords("KeyError: 7"))
    async with asyncio.timeout(DEADLINE_S):
        assert await ranks.death == Death(0, "broke: KeyError: 7")
    rank.close()
    context.term()
    await ranks.close()


async def test_an_order_for_faults_is_answered_like_a_question() -> None:
    ranks = Ranks([("never", "started")])
    ranks.listen(lambda _: None, lambda _, __: None)
    context = zmq.asyncio.Context()
    rank = FakeRank(context, ranks.links[0])
    order = FaultOrder(Fault.WRITE_FAIL)
    asking = asyncio.create_task(ranks.chaos(order))
    async with asyncio.timeout(DEADLINE_S):
        heard = await rank.hear(Chaos)
        assert (heard.order, heard.clear) == (order, False)
        await rank.say(Snapshot(heard.question, {"armed": ["write.fail"], "refused": ""}))
        assert await asking == [{"armed": ["write.fail"], "refused": ""}]
    rank.close()
    context.term()
    await ranks.close()


async def test_a_rank_that_is_killed_is_named_with_the_signal() -> None:
    async with running(argv()) as (ranks, _):
        await ranks.ready()
        ranks._processes[0].kill()
        assert str(await ranks.death) == "rank 0 was killed by SIGKILL"


async def test_a_rank_that_stands_still_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("STOP_S", "EOF_S", "TERM_S"):
        monkeypatch.setattr(ranks_module, name, 0.05)
    async with running(argv()) as (ranks, _):
        await ranks.ready()
        pid = ranks._processes[0].pid
        os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)


async def test_a_rank_ends_when_its_front_dies_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    source = (
        "import asyncio, os, sys\n"
        "from daemons.front.ranks import Ranks\n"
        "async def main():\n"
        f"    ranks = Ranks([{argv('--pid-file', str(file))!r}])\n"
        "    ranks.listen(lambda _: None, lambda *_: None)\n"
        "    await ranks.spawn()\n"
        "    await ranks.ready()\n"
        "    os._exit(9)\n"
        "asyncio.run(main())\n"
    )
    front = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    async with asyncio.timeout(DEADLINE_S):
        assert await front.wait() == 9
    await gone(int(file.read_text()))


async def test_a_command_that_does_not_exist_is_the_operators_error() -> None:
    with pytest.raises(OperatorError, match="cannot start rank 0"):
        async with running(("/no/such/program",)):
            pass


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (-9, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
    ],
)
def test_the_end_of_a_process_has_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


async def test_a_long_temporary_folder_does_not_break_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    ranks = Ranks([("rank",)])
    ranks.listen(lambda _: None, lambda _, __: None)
    assert len(ranks.links[0]) < 108
    await ranks.close()

"""Verdicts on grammars; what breaks the process that finds them breaks nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemons.front import grammars as module
from daemons.front.grammars import Grammars
from daemons.protocol.causes import Cause
from daemons.protocol.generate import Grammar, GrammarKind
from daemons.runtime.http import Refusal
from tests.support.tiny_model import tiny_model

GOOD, BAD, SLOW, DEADLY = (Grammar(GrammarKind.REGEX, text) for text in ("a", "no", "sleep", "die"))


@pytest.fixture(autouse=True)
def _light_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process be one that loads nothing; the last test takes the true one."""
    monkeypatch.setattr(module, "CHECK_MODULE", "tests.support.grammar_process")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)


@asynccontextmanager
async def checking(directory: Path) -> AsyncIterator[Grammars]:
    grammars = Grammars(str(tiny_model(directory)), 258)
    try:
        yield grammars
    finally:
        await grammars.close()
    assert grammars._process is None


async def turns(until: Callable[[], bool]) -> None:
    """Give the loop turns; each condition holds after a few."""
    for _ in range(100):
        if until():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition does not hold")


async def test_a_grammar_passes_or_its_reason_is_the_clients(tmp_path: Path) -> None:
    async with checking(tmp_path) as grammars:
        await grammars.check(GOOD)
        for _ in range(2):
            with pytest.raises(Refusal, match="grammar: regex: no") as caught:
                await grammars.check(BAD)
            assert caught.value.status == 400
            assert caught.value.failure is not None
            assert caught.value.failure.cause is Cause.REQUEST_INVALID


async def test_verdicts_are_remembered_and_one_question_serves_all_who_ask_it(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path) as grammars:
        await asyncio.gather(*(grammars.check(GOOD) for _ in range(100)))
        assert grammars._process is not None
        grammars._process.kill()
        await grammars._process.wait()
        await grammars.check(GOOD)
        assert grammars._process.returncode is not None


async def test_a_process_that_died_is_replaced(tmp_path: Path) -> None:
    async with checking(tmp_path) as grammars:
        await grammars.check(GOOD)
        assert grammars._process is not None
        grammars._process.kill()
        await grammars._process.wait()
        with pytest.raises(Refusal, match="regex: "):
            await grammars.check(BAD)


async def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with checking(tmp_path) as grammars:
        await grammars.check(GOOD)
        with monkeypatch.context() as patch:
            patch.setattr(module, "CHECK_S", 0.1)
            with pytest.raises(Refusal, match="regex: it takes too long") as caught:
                await grammars.check(SLOW)
        assert caught.value.status == 400
        with pytest.raises(Refusal, match="regex: no"):
            await grammars.check(BAD)


async def test_a_grammar_of_which_the_process_dies_is_refused(tmp_path: Path) -> None:
    async with checking(tmp_path) as grammars:
        with pytest.raises(Refusal, match="regex: it breaks the compiler") as caught:
            await grammars.check(DEADLY)
        assert caught.value.status == 400
        await grammars.check(GOOD)


async def test_a_client_that_leaves_disturbs_nobody(tmp_path: Path) -> None:
    async with checking(tmp_path) as grammars:
        task = asyncio.create_task(grammars.check(GOOD))
        await turns(lambda: bool(grammars._asked))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(Refusal, match="regex: "):
            await grammars.check(BAD)


async def test_a_process_that_cannot_start_is_the_servers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with checking(tmp_path) as grammars:
        monkeypatch.setattr(module, "CHECK_MODULE", "daemons.engine.no_such_module")
        with pytest.raises(Refusal, match="ended at its start, exit 1") as caught:
            await grammars.check(GOOD)
        assert caught.value.status == 503


async def test_more_grammars_than_may_wait_are_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_LIMIT", 1)
    async with checking(tmp_path) as grammars:
        first = asyncio.create_task(grammars.check(GOOD))
        await turns(lambda: bool(grammars._asked))
        with pytest.raises(Refusal, match="are being checked") as caught:
            await grammars.check(BAD)
        assert caught.value.status == 503
        await first


async def test_verdicts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERDICTS_LIMIT", 2)
    async with checking(tmp_path) as grammars:
        for text in "abc":
            await grammars.check(Grammar(GrammarKind.REGEX, text))
        assert len(grammars._verdicts) == 2


async def test_without_the_library_every_grammar_is_the_clients_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    async with checking(tmp_path) as grammars:
        with pytest.raises(Refusal, match="not installed here") as caught:
            await grammars.check(GOOD)
        assert caught.value.status == 400


async def test_the_true_process_speaks_as_the_light_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    pytest.importorskip("xgrammar")
    async with checking(tmp_path) as grammars:
        await grammars.check(Grammar(GrammarKind.REGEX, "a+"))
        with pytest.raises(Refusal, match="regex: Regex parsing error"):
            await grammars.check(Grammar(GrammarKind.REGEX, "("))

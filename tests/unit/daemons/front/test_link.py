"""A front's end of the wire to a rank."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq.asyncio

from daemons.front import link as link_module
from daemons.front.link import OUTBOX_LIMIT, Link
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Cancel, Drain, LookUp, Sampling, Submit, ToFront
from daemons.runtime.http import Refusal
from tests.support.fake_rank import FakeRank

SUBMIT = Submit(7, 1, (1,), Sampling(), "p0", 1.0)


class Wire:
    """A link and whoever connects to it."""

    def __init__(self, context: zmq.asyncio.Context, path: Path) -> None:
        self.heard: asyncio.Queue[ToFront] = asyncio.Queue()
        self.context = context
        self.link = Link(context, f"ipc://{path}", self.heard.put_nowait)

        self.ranks: list[FakeRank] = []

    def rank(self) -> FakeRank:
        self.ranks.append(FakeRank(self.context, self.link.address))
        return self.ranks[-1]


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    context = zmq.asyncio.Context()
    wire = Wire(context, tmp_path / "rank0")
    yield wire
    await wire.link.close()
    for rank in wire.ranks:
        rank.close()
    context.term()


async def test_messages_arrive_in_their_order_even_those_from_before_the_rank_came(
    wire: Wire,
) -> None:
    wire.link.tell(SUBMIT)
    wire.link.tell(Drain(on=True))
    rank = wire.rank()
    assert await rank.hear(Submit) == SUBMIT
    assert await rank.hear(Drain) == Drain(on=True)


async def test_what_a_rank_says_is_heard(wire: Wire) -> None:
    await wire.rank().say(LookUp("p0"))
    async with asyncio.timeout(5):
        assert await wire.heard.get() == LookUp("p0")


async def test_a_rank_that_does_not_read_is_given_no_more_requests_but_every_cancel(
    wire: Wire,
) -> None:
    for _ in range(OUTBOX_LIMIT):
        wire.link.tell(SUBMIT)
    with pytest.raises(Refusal) as refusal:
        wire.link.tell(SUBMIT)
    assert refusal.value.status == 503
    wire.link.tell(Cancel(7, 1, Failure(Cause.CLIENT_CANCELLED, "x")))


async def test_bytes_that_are_no_message_break_the_link_with_a_reason(wire: Wire) -> None:
    await wire.rank().say_raw(b"nonsense")
    async with asyncio.timeout(5):
        assert "no message" in await wire.link.broken


async def test_a_front_that_cannot_take_a_word_says_so_instead_of_going_deaf(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(_: ToFront) -> None:
        raise KeyError("what?")

    monkeypatch.setattr(wire.link, "_heard", deaf)
    await wire.rank().say(LookUp("p0"))
    async with asyncio.timeout(5):
        assert "KeyError" in await wire.link.broken


async def test_a_flush_sends_all_and_does_not_wait_for_a_rank_that_is_not_there(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "FLUSH_S", 0.01)
    wire.link.tell(SUBMIT)
    await wire.link.flush()  # nobody there: returns all the same
    monkeypatch.setattr(link_module, "FLUSH_S", 5.0)
    rank = wire.rank()
    await wire.link.flush()
    assert await rank.hear(Submit) == SUBMIT

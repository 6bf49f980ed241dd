"""Writes to one peer, against an engine that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest

from daemons.transfer.backend import Copy, PeerGone, WriteCut
from daemons.transfer.mooncake_engine import Sent
from daemons.transfer.mooncake_sender import PIECE_BYTES, WINDOW_BYTES, Limits, Sender

SESSION = "127.0.0.1:15001"


def always(sent: Sent) -> Callable[[int], Sent]:
    return lambda number: sent


@dataclass
class Script:
    """An engine whose answers are given; it remembers what it was asked."""

    answer: Callable[[int], Sent] = lambda number: Sent.DONE
    opens: bool = True
    accepts: int = 1 << 30
    copies: list[Copy] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    most_live: int = 0
    most_live_bytes: int = 0
    ended: bool = False
    hold: Event | None = None

    def open(self, session: str) -> bool:
        if self.hold:
            self.hold.wait(10)
        return self.opens

    def submit(self, session: str, copy: Copy) -> int | None:
        if len(self.copies) == self.accepts:
            return None
        self.copies.append(copy)
        self.live.add(len(self.copies))
        self.most_live = max(self.most_live, len(self.live))
        live_bytes = sum(self.copies[number - 1].bytes for number in self.live)
        self.most_live_bytes = max(self.most_live_bytes, live_bytes)
        return len(self.copies)

    def check(self, number: int) -> Sent:
        assert number in self.live
        sent = self.answer(number)
        if sent is not Sent.RUNNING:
            self.live.remove(number)
        return sent

    def end(self) -> None:
        self.ended = True


def sender(script: Any, *, copies: int = 10, timeout_s: float = 5, **more: Any) -> Sender:
    return Sender(script, SESSION, Limits(copies, timeout_s), more.get("closing", Event()))


def test_all_copies_are_sent_and_waited_for_in_order() -> None:
    script = Script()
    wanted = [Copy(i + 1, i + 1001, 8) for i in range(50)]
    sender(script).push(wanted)
    assert script.copies == wanted
    assert not script.live


def test_no_more_copies_than_allowed_are_under_way() -> None:
    script = Script()
    sender(script, copies=7).push([Copy(1, 1, 8)] * 50)
    assert script.most_live == 7


def test_a_long_copy_goes_out_in_pieces_within_the_window() -> None:
    script = Script()
    length = 2 * WINDOW_BYTES + 5
    sender(script, copies=1000).push([Copy(100, 10**12, length)])
    assert max(copy.bytes for copy in script.copies) == PIECE_BYTES
    assert script.most_live_bytes <= WINDOW_BYTES + PIECE_BYTES
    ends = [(copy.source + copy.bytes, copy.target + copy.bytes) for copy in script.copies]
    starts = [(copy.source, copy.target) for copy in script.copies]
    assert starts == [(100, 10**12), *ends[:-1]]
    assert ends[-1] == (100 + length, 10**12 + length)


def test_copies_that_need_time_are_asked_for_until_they_are_done() -> None:
    asked: dict[int, int] = {}

    def slow(number: int) -> Sent:
        asked[number] = asked.get(number, 0) + 1
        return Sent.DONE if asked[number] > 3 else Sent.RUNNING

    script = Script(slow)
    sender(script, copies=2).push([Copy(1, 1, 8)] * 5)
    assert len(script.copies) == 5
    assert not script.live


@pytest.mark.parametrize("bad", [Sent.FAILED, Sent.TIMED_OUT])
def test_a_failed_copy_cuts_the_write_and_nothing_new_is_begun(bad: Sent) -> None:
    script = Script(lambda number: bad if number == 3 else Sent.DONE)
    with pytest.raises(WriteCut, match=f"{SESSION}.*{bad.name.lower()}"):
        sender(script, copies=4).push([Copy(1, 1, 8)] * 50)
    assert len(script.copies) <= 7


def test_a_copy_that_is_not_accepted_cuts_the_write() -> None:
    with pytest.raises(WriteCut, match="not accepted"):
        sender(Script(accepts=2)).push([Copy(1, 1, 8)] * 3)


def test_copies_that_never_move_are_cut() -> None:
    with pytest.raises(WriteCut, match="1 copies have not moved"):
        sender(Script(always(Sent.RUNNING)), timeout_s=0.05).push([Copy(1, 1, 8)])


def test_closing_cuts_a_write_that_waits() -> None:
    closing = Event()
    closing.set()
    with pytest.raises(WriteCut, match="closed here"):
        sender(Script(always(Sent.RUNNING)), closing=closing).push([Copy(1, 1, 8)])


def test_a_peer_that_refuses_is_gone() -> None:
    with pytest.raises(PeerGone, match=f"nobody answers at {SESSION}"):
        sender(Script(opens=False)).open()


def test_a_peer_that_does_not_answer_in_time_is_gone_until_it_does() -> None:
    hold = Event()
    subject = sender(Script(hold=hold), timeout_s=0.05)
    with pytest.raises(PeerGone, match="does not answer"):
        subject.open()
    assert subject.opening
    hold.set()
    subject._opener.join(10)  # type: ignore[union-attr]
    subject.open()
    assert not subject.opening


def test_the_end_of_a_sender_is_the_end_of_its_engine() -> None:
    script = Script()
    sender(script).end()
    assert script.ended

"""One token per room and step, until something ends the text."""

from __future__ import annotations

import pytest

from daemons.decode.request import Request
from daemons.decode.running_batch import RunningBatch, finish_of
from daemons.kv.ledger import Ledger, Owner
from daemons.kv.window_table import WindowTable
from daemons.protocol.generate import FinishReason, Sampling
from tests.support.cores import key, submit, window_pool


def room(
    number: int, tokens: int = 4, output: tuple[int, ...] = (7,), **sampling: object
) -> Request:
    asked = submit(number, tokens, sampling=Sampling(**sampling))  # type: ignore[arg-type]
    return Request(asked, key(number), 0.0, 0.0, 9, output=list(output))


def test_rooms_join_in_order_while_there_is_a_place() -> None:
    batch = RunningBatch(4, batch_rooms=2)
    waiting = {key(n): room(n) for n in (3, 1, 2)}
    assert [request.key for request in batch.join(waiting)] == [key(3), key(1)]
    assert list(waiting) == [key(2)]
    assert batch.join(waiting) == []


def test_a_step_takes_the_page_that_its_token_needs() -> None:
    batch, pages = RunningBatch(4, 9), Ledger(4)
    request = room(1, tokens=4)
    request.pages = pages.take(key(1), 1, Owner.REQUEST)
    batch.rooms[key(1)] = request
    (item,) = batch.step(pages)
    assert (item.tokens, item.start, item.pages, item.samples) == ((7,), 4, (0, 1), True)
    assert pages.owner(1) == (Owner.REQUEST, key(1))
    assert request.in_steps


def test_a_step_takes_no_page_that_it_does_not_need() -> None:
    batch, pages = RunningBatch(4, 9), Ledger(4)
    request = room(1, tokens=4, output=(7, 8))
    request.pages = pages.take(key(1), 2, Owner.REQUEST)
    batch.rooms[key(1)] = request
    (item,) = batch.step(pages)
    assert (item.tokens, item.start) == ((8,), 5)
    assert pages.free == 2


def test_a_step_has_the_window_pages_that_it_sees_and_one_to_write() -> None:
    batch, pages = RunningBatch(4, 9, window_pool(50)), Ledger(9)
    request = room(1, tokens=16, output=(7,))
    request.pages = pages.take(key(1), 4, Owner.REQUEST)
    request.window = WindowTable(2, (40, 41), (42,))
    batch.rooms[key(1)] = request
    (item,) = batch.step(pages)
    assert (item.start, item.window_first, item.window) == (16, 2, (40, 41, 42))
    request.in_steps = 0
    request.output = [7] * 5
    (item,) = batch.step(pages)
    assert (item.start, item.window_first, item.window) == (20, 3, (41, 42, 40))
    assert pages.free == 3, "the others come as ever"


def test_places_of_rooms_that_come_back_are_not_given_away() -> None:
    batch = RunningBatch(4, batch_rooms=2)
    waiting = {key(n): room(n) for n in (1, 2)}
    assert [request.key for request in batch.join(waiting, returning=1)] == [key(1)]


def test_the_rooms_with_the_least_output_are_short_when_pages_are() -> None:
    batch, pages = RunningBatch(4, 9), Ledger(4)
    for number, output in ((1, (7,)), (2, (7, 8, 9, 7, 8)), (3, (7,))):
        request = room(number, tokens=4, output=output)
        request.pages = pages.take(key(number), 1, Owner.REQUEST)
        batch.rooms[key(number)] = request
    assert [request.key for request in batch.short(pages)] == [key(1), key(3)]
    assert [item.key for item in batch.step(pages)] == [key(2)]
    assert not batch.rooms[key(1)].in_steps
    assert pages.free == 0


def test_a_room_that_needs_no_page_steps_although_none_is_free() -> None:
    batch, pages = RunningBatch(4, 9), Ledger(1)
    request = room(1, tokens=2)
    request.pages = pages.take(key(1), 1, Owner.REQUEST)
    batch.rooms[key(1)] = request
    assert batch.short(pages) == []
    assert len(batch.step(pages)) == 1


@pytest.mark.parametrize(
    ("output", "sampling", "finish"),
    [
        ((1,), {"max_tokens": 2}, (None, None)),
        ((1, 1), {"max_tokens": 2}, (FinishReason.LENGTH, None)),
        ((1,), {"max_tokens": 1}, (FinishReason.LENGTH, None)),
        ((1, 2), {"max_tokens": 2, "eos_token_ids": (2,)}, (FinishReason.STOP, 2)),
        ((2,), {"max_tokens": 9, "stop_token_ids": (2,)}, (FinishReason.STOP, 2)),
        ((2,), {"max_tokens": 9, "eos_token_ids": (2,), "ignore_eos": True}, (None, None)),
        ((2, 1), {"max_tokens": 9, "eos_token_ids": (2,)}, (None, None)),
    ],
)
def test_a_text_ends_by_its_newest_token_or_its_length(
    output: tuple[int, ...], sampling: dict[str, object], finish: object
) -> None:
    assert finish_of(room(1, output=output, **sampling)) == finish

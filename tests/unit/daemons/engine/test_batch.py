from __future__ import annotations

import pytest
import torch

from daemons.engine.batch import Table, fault, lay_out, window_fault
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

KEY = RoomKey(1, 1)


def item(tokens: int, start: int, *pages: int) -> Item:
    return Item(KEY, tuple(range(10, 10 + tokens)), start, pages, samples=True)


def test_items_lie_behind_each_other_at_their_positions_and_slots() -> None:
    items = [item(3, 2, 5, 1), item(1, 4, 0, 1)]
    batch = lay_out(items, 4, torch.device("cpu"))
    assert batch.ids.tolist() == [10, 11, 12, 10]
    assert batch.positions.tolist() == [2, 3, 4, 4]
    assert batch.slots.tolist() == [5 * 4 + 2, 5 * 4 + 3, 1 * 4, 1 * 4]
    assert [(span.first, span.last, span.context) for span in batch.spans] == [(0, 2, 5), (3, 3, 5)]


def test_a_span_has_only_the_pages_in_use_and_knows_whether_they_are_neighbours() -> None:
    spare, scattered, backwards = lay_out(
        [item(4, 0, 7, 3), item(5, 0, 7, 3), item(5, 0, 3, 2)], 4, torch.device("cpu")
    ).spans
    assert (spare.pages, spare.contiguous) == ((7,), True)
    assert (scattered.pages, scattered.contiguous) == ((7, 3), False)
    assert (backwards.pages, backwards.contiguous) == ((3, 2), False)


def test_the_last_row_of_each_item_is_known() -> None:
    batch = lay_out([item(3, 0, 5), item(1, 4, 0, 1), item(2, 0, 3)], 4, torch.device("cpu"))
    assert list(batch.lasts) == [2, 3, 5] == [span.last for span in batch.spans]


@pytest.mark.parametrize("second", [(7, 3, 9), (7, 3), (7, 4, 9), (7,), (8, 1, 2, 3)])
def test_a_table_follows_one_that_grows_shrinks_or_is_another(second: tuple[int, ...]) -> None:
    table = Table()
    for pages in ((7, 3), second):
        table.follow(pages)
        assert (table.pages, tuple(table.numbers)) == (pages, pages)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Item(KEY, (), 0, (0,), True), "without tokens"),
        (Item(KEY, (1,), -1, (0,), True), "negative"),
        (Item(KEY, (1,), 32, (0, 1, 2, 3, 4, 5, 6, 7, 8), True), "33 tokens, the model's limit"),
        (Item(KEY, (100,), 0, (0,), True), "token id outside 0..99"),
        (Item(KEY, (-1,), 0, (0,), True), "token id outside"),
        (Item(KEY, (1,) * 5, 0, (0,), True), "1 pages for 5 tokens, 2 are needed"),
        (Item(KEY, (1,), 0, (16,), True), "page outside 0..15"),
        (Item(KEY, (1,), 0, (-1,), True), "page outside"),
    ],
)
def test_a_fault_says_what_is_wrong(bad: Item, reason: str) -> None:
    assert reason in fault(bad, vocab_size=100, max_model_len=32, pages=16, page_size=4)


def test_an_item_at_every_limit_has_no_fault() -> None:
    good = Item(KEY, (99, 0), 30, tuple(range(8, 16)), True)
    assert fault(good, vocab_size=100, max_model_len=32, pages=16, page_size=4) == ""


def test_pages_that_were_found_right_are_not_read_again_but_others_are() -> None:
    found = (99, 98)  # as if these had been checked
    limits = {"vocab_size": 100, "max_model_len": 32, "pages": 16, "page_size": 4}
    assert fault(Item(KEY, (1,), 4, found, True), known=found, **limits) == ""
    assert "page outside" in fault(Item(KEY, (1,), 4, (99, 98, 0), True), known=found, **limits)
    assert "3 are needed" in fault(Item(KEY, (1,), 8, found, True), known=found, **limits)


def near(tokens: int, start: int, first: int, *window: int) -> Item:
    return Item(KEY, (1,) * tokens, start, tuple(range(16)), True, window, first)


def test_window_pages_are_laid_out_from_where_their_table_begins() -> None:
    batch = lay_out([near(3, 9, 1, 7, 4), near(1, 6, 0, 2, 5)], 4, torch.device("cpu")).windowed
    assert batch.slots.tolist() == [4 * 4 + 1, 4 * 4 + 2, 4 * 4 + 3, 5 * 4 + 2]
    assert [(span.start, span.context, span.pages) for span in batch.spans] == [
        (5, 8, (7, 4)),
        (6, 7, (2, 5)),
    ]
    assert [list(table.numbers) for table in batch.tables] == [[7, 4], [2, 5]]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (near(1, 9, 0), "window pages 0 to -1 of the text, 1 to 2 are needed"),
        (near(1, 9, 2, 3), "window pages 2 to 2 of the text, 1 to 2 are needed"),
        (near(1, 9, 1, 3), "window pages 1 to 1 of the text, 1 to 2 are needed"),
        (near(4, 9, 1, 3, 4), "1 to 3 are needed"),
        (near(1, 9, -1, 1, 2, 3, 4), "window pages -1 to 2"),
        (near(1, 9, 1, 3, 8), "a window page outside 0..7"),
        (near(1, 9, 1, -1, 3), "a window page outside"),
    ],
)
def test_a_fault_of_window_pages_says_what_is_wrong(bad: Item, reason: str) -> None:
    assert reason in window_fault(bad, window=6, pages=8, page_size=4)


@pytest.mark.parametrize(
    "good", [near(1, 9, 1, 7, 0), near(1, 9, 0, 99, 7, 0), near(3, 9, 1, 7, 0, 5), near(1, 0, 0, 0)]
)
def test_window_pages_may_begin_before_what_is_needed_and_end_behind_it(good: Item) -> None:
    assert window_fault(good, window=6, pages=100, page_size=4) == ""


def test_window_pages_that_were_found_right_are_not_read_again() -> None:
    item = near(1, 9, 1, 99, 98)
    assert "outside" in window_fault(item, window=6, pages=8, page_size=4)
    assert window_fault(item, window=6, pages=8, page_size=4, known=item.window) == ""

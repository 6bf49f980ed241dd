"""What of a decode's memory may be written."""

from __future__ import annotations

import msgspec
import pytest

from daemons.prefill.decodes import Decodes
from daemons.protocol.generate import prompt_digest
from daemons.protocol.handshake import KvRegion
from tests.support.cores import (
    D_OTHER,
    FINGERPRINT,
    REGIONS,
    D,
    buffers,
    destination,
    window_pool,
)


def decodes() -> Decodes:
    return Decodes(FINGERPRINT, REGIONS, {D: buffers(D)})


def test_equal_shapes_pair() -> None:
    assert decodes().refusal(buffers(D)) == ""


def test_some_of_the_heads_are_enough() -> None:
    assert decodes().refusal(buffers(D, regions=REGIONS[:1])) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"fingerprint": msgspec.structs.replace(FINGERPRINT, page_size=8)},
            "page_size: ours 4, theirs 8",
        ),
        ({"row_bytes": 64}, "row_bytes: ours 2048, theirs 64"),
        ({"regions": (REGIONS[0], REGIONS[0])}, "2 regions, 1 of them different"),
        ({"regions": (KvRegion(4096, 128, 5, 0, 0),)}, "no layer and head in common"),
        (
            {"regions": (KvRegion(4096, 64, 0, 0, 0),)},
            "page_bytes at (0, 0, 0): ours 128, theirs 64",
        ),
        (
            {"regions": (KvRegion(2**63 - 1, 128, 0, 0, 0),)},
            "memory up to 0x8000000000001fff, addresses end at 0x8000000000000000",
        ),
        (
            {"rows_address": 2**63 - 1},
            "memory up to 0x8000000000007fff, addresses end at 0x8000000000000000",
        ),
    ],
)
def test_a_difference_is_refused_with_both_values(changes: dict[str, object], reason: str) -> None:
    assert decodes().refusal(buffers(D, **changes)) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sender": D_OTHER}, "d1/0@300 has not registered its buffers"),
        ({"prompt_tokens": 7}, "prompt tokens: ours 6, theirs 7"),
        (
            {"prompt_digest": "0" * 16},
            f"prompt: ours has digest {prompt_digest(range(1, 7))}, theirs {'0' * 16}",
        ),
        ({"prefix_tokens": 3}, "prefix of 3 tokens, pages have 4"),
        ({"prefix_tokens": 8}, "prefix of 8 tokens, pages have 4"),
        ({"pages": (10,)}, "1 pages offered, 2 needed"),
        ({"pages": (10, 10)}, "1 pages offered, 2 needed"),
        ({"pages": (10, 11, 12)}, "3 pages offered, 2 needed"),
        ({"prefix_tokens": 4}, "2 pages offered, 1 needed"),
        ({"pages": (10, 64)}, "page 64 of 64"),
        ({"row": 16}, "row 16 of 16"),
    ],
)
def test_a_bad_destination_is_told_what_is_wrong(changes: dict[str, object], reason: str) -> None:
    assert decodes().bad_destination(destination(**changes), range(1, 7)) == reason


@pytest.mark.parametrize(
    "changes", [{}, {"pages": (63, 0)}, {"row": 15}, {"prefix_tokens": 4, "pages": (9,)}]
)
def test_a_good_destination_is_let_through(changes: dict[str, object]) -> None:
    assert decodes().bad_destination(destination(**changes), range(1, 7)) == ""


def test_a_prompt_that_decode_has_whole_needs_no_page() -> None:
    whole = destination(tokens=8, prefix_tokens=8, pages=())
    assert decodes().bad_destination(whole, range(1, 9)) == ""


def windowed() -> Decodes:
    """Both sides have window pages; a decode 8 of them."""
    known = {D: buffers(D, window_pages=8)}
    return Decodes(FINGERPRINT, REGIONS, known, window_pool(20))


def test_both_sides_have_window_pages_or_none() -> None:
    assert windowed().refusal(buffers(D)) == "window_pages: ours 20, theirs 0"
    assert decodes().refusal(buffers(D, window_pages=8)) == "window_pages: ours 0, theirs 8"
    assert windowed().refusal(buffers(D, window_pages=8)) == ""


def test_a_region_ends_where_its_own_kind_of_pages_does() -> None:
    high = KvRegion(2**63 - 1 - 128 * 8, 128, 1, 0, 0)
    assert windowed().refusal(buffers(D, window_pages=8, regions=(REGIONS[0], high))) == ""
    assert "addresses end" in windowed().refusal(
        buffers(D, window_pages=9, regions=(REGIONS[0], high))
    )


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        ((7, 0), ""),  # 13 tokens, 6 of them seen: from 8 on
        ((), "0 window pages offered, 2 needed"),
        ((1, 1), "1 window pages offered, 2 needed"),
        ((1, 2, 3), "3 window pages offered, 2 needed"),
        ((1, 8), "window page 8 of 8"),
    ],
)
def test_window_pages_are_as_many_as_are_seen_from_behind_the_prompt(
    offered: tuple[int, ...], reason: str
) -> None:
    where = destination(tokens=13, window_pages=offered)
    assert windowed().bad_destination(where, range(1, 14)) == reason


def test_without_a_window_none_are_taken() -> None:
    where = destination(window_pages=(1,))
    assert decodes().bad_destination(where, range(1, 7)) == "1 window pages offered, 0 needed"

"""What a process shows its neighbours."""

from __future__ import annotations

import dataclasses
import os

import pytest

from daemons.transfer import notice
from daemons.transfer.backend import Region
from daemons.transfer.notice import Notice, NotThere
from daemons.transfer.shares import Share


def test_a_neighbour_reads_what_is_shown() -> None:
    ours = Notice()
    empty = notice.read(ours.address)
    assert notice.shown(empty) == []
    two = [(Region(4096, 7), None), (Region(8192, 9), Share(3, 1, 12345, 64))]
    ours.show(two)
    assert notice.shown(notice.read(ours.address)) == two
    assert notice.read(ours.address, len(empty)) != empty  # who reads no further learns of it


def test_an_address_survives_its_way_as_a_session() -> None:
    ours = Notice()
    assert notice.parse(str(ours.address)) == ours.address


@pytest.mark.parametrize(
    "session",
    [
        "",
        "127.0.0.1:15001",
        "cma2:h:1:2:ff:00",
        "cma2:h:x:2:ff:" + "00" * 16,
        "cma2:h:-1:2:ff:" + "00" * 16,
        "cma2:h:1:2:0:" + "00" * 16,
        "cma2:h:99999999999:2:ff:" + "00" * 16,
        "cma:h:1:2:ff:" + "00" * 16,
        "bma:h:1:2:ff:" + "00" * 16,
    ],
)
def test_anything_else_is_no_address(session: str) -> None:
    assert notice.parse(session) is None


def test_a_wiped_notice_is_nobodys() -> None:
    ours = Notice()
    ours.wipe()
    with pytest.raises(NotThere, match="has closed"):
        notice.read(ours.address)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"host": "elsewhere"}, "another host"),
        ({"nonce": bytes(16)}, "another one"),
        ({"page": 4096}, "cannot be reached"),
        ({"pid": 2**30}, "cannot be reached"),
    ],
)
def test_a_process_that_is_not_the_one_of_the_address_is_not_read(
    change: dict[str, object], why: str
) -> None:
    ours = Notice()
    other = dataclasses.replace(ours.address, **change)  # type: ignore[arg-type]
    with pytest.raises(NotThere, match=why):
        notice.read(other)


def test_more_regions_than_a_page_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="place for"):
        Notice().show([(Region(1, 1), None)] * (notice.LIMIT + 1))


def test_the_start_of_a_process_tells_it_from_a_later_one() -> None:
    assert 0 < notice.started(1) <= notice.started(os.getpid())

"""What a process shows its neighbours."""

from __future__ import annotations

import dataclasses
import os

import pytest

from daemons.transfer import notice
from daemons.transfer.backend import Region
from daemons.transfer.notice import Notice, NotThere, Reader
from daemons.transfer.shares import Share
from tests.support.transfer_process import Process


def test_a_neighbour_reads_what_is_shown() -> None:
    ours = Notice()
    reader = Reader(ours.address)
    empty = reader.read()
    assert notice.shown(empty) == []
    two = [(Region(4096, 7), None), (Region(8192, 9), Share(3, 1, 12345, 64))]
    ours.show(two)
    assert notice.shown(reader.read()) == two
    assert not reader.shows(empty)
    assert reader.shows(reader.read())


def test_an_address_survives_its_way_as_a_session() -> None:
    ours = Notice()
    assert notice.parse(str(ours.address)) == ours.address


@pytest.mark.parametrize(
    "session",
    [
        "",
        "127.0.0.1:15001",
        "cma2:h:1:2:3:00",
        "cma2:h:x:2:3:" + "00" * 16,
        "cma2:h:-1:2:3:" + "00" * 16,
        "cma2:h:1:2:-1:" + "00" * 16,
        "cma2:h:99999999999:2:3:" + "00" * 16,
        "cma:h:1:2:3:" + "00" * 16,
        "bma:h:1:2:3:" + "00" * 16,
    ],
)
def test_anything_else_is_no_address(session: str) -> None:
    assert notice.parse(session) is None


def test_a_wiped_notice_is_nobodys() -> None:
    ours = Notice()
    reader = Reader(ours.address)
    ours.wipe()
    with pytest.raises(NotThere, match="has closed"):
        reader.read()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"host": "elsewhere"}, "another host"),
        ({"nonce": bytes(16)}, "another one"),
        ({"file": 2**20}, "cannot be reached"),
        ({"start": 1}, "another one now"),
        ({"pid": 2**30}, "is not there"),
    ],
)
def test_a_process_that_is_not_the_one_of_the_address_is_not_read(
    change: dict[str, object], why: str
) -> None:
    ours = Notice()
    other = dataclasses.replace(ours.address, **change)  # type: ignore[arg-type]
    with pytest.raises(NotThere, match=why) as raised:
        Reader(other).read()
    assert raised.value.ended is ("start" in change or "pid" in change)


def test_a_process_that_is_hidden_from_us_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(pid: int) -> int:
        raise FileNotFoundError(2, "No such file or directory")  # as under hidepid

    ours = Notice()
    monkeypatch.setattr(notice, "started", hidden)
    with pytest.raises(NotThere, match="is not there") as raised:
        Reader(ours.address)
    assert not raised.value.ended


def test_more_regions_than_a_page_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="place for"):
        Notice().show([(Region(1, 1), None)] * (notice.LIMIT + 1))


def test_the_start_of_a_process_tells_it_from_a_later_one() -> None:
    assert 0 < notice.started(1) <= notice.started(os.getpid())


def test_a_notice_whose_process_has_ended_is_nobodys() -> None:
    peer = Process(4096, backend="cma")
    address = notice.parse(peer.session)
    assert address is not None
    reader = Reader(address)
    assert len(notice.shown(reader.read())) == 1
    page = reader.read()
    assert reader.shows(page)
    peer.kill()
    assert not reader.shows(page)
    with pytest.raises(NotThere, match="has ended") as raised:
        reader.read()
    assert raised.value.ended


def test_without_memory_that_can_be_mapped_there_is_no_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notice, "share_of", lambda region: None)
    with pytest.raises(OSError, match="could map"):
        Notice()

"""Hosts and ports of others' routers, and which prefill they mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest

from daemons.front.config import FrontConfig
from daemons.front.meetings import (
    FRESH_S,
    STALE_S,
    Meeting,
    Meetings,
    canonical,
    is_phone_book,
    prefill_at,
)
from daemons.protocol.causes import Cause
from daemons.protocol.topology import InstanceInfo, Role, State
from daemons.runtime.http import Refusal
from daemons.runtime.phonebook import PhoneBook
from tests.support.front_bench import FakeBook, front_config, phone_book, prefill_info

BOOK = ("10.0.0.1", 8998)


def config(**more: object) -> FrontConfig:
    addresses = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n6": "fd00::6"}
    here = {"bootstrap_host": BOOK[0], "bootstrap_port": BOOK[1], "host_addresses": addresses}
    return front_config(Path("model"), "http://10.0.0.1:8998", **{**here, **more})


def at(name: str, host: str, port: int, state: State = State.READY) -> InstanceInfo:
    return msgspec.structs.replace(prefill_info(name, state), http_host=host, http_port=port)


def meant(host: str, port: int, *listed: InstanceInfo) -> str:
    return prefill_at(Meeting(host, port), listed, config()).instance


ONE, TWO, THREE = (
    at("p1", "10.0.0.1", 30000),
    at("p2", "10.0.0.2", 30000),
    at("p3", "10.0.0.2", 30001),
)


def test_a_prefill_is_meant_by_its_own_host_and_port() -> None:
    assert meant("10.0.0.2", 30000, ONE, TWO, THREE) == "p2"
    assert meant("10.0.0.2", 30001, ONE, TWO, THREE) == "p3"


def test_the_phone_books_port_means_the_only_prefill_of_a_host() -> None:
    assert meant("10.0.0.2", 8998, ONE, TWO) == "p2"
    assert meant("10.0.0.1", 8998, ONE, TWO) == "p1"  # the phone book is there, too


def test_of_several_prefills_on_a_host_the_port_must_tell_which() -> None:
    with pytest.raises(Refusal, match=r"p2 \(10\.0\.0\.2:30000\), p3") as refusal:
        meant("10.0.0.2", 8998, ONE, TWO, THREE)
    assert refusal.value.status == 400


def test_the_phone_books_name_or_none_means_the_only_prefill_of_all() -> None:
    assert meant(*BOOK, TWO) == "p2"
    assert prefill_at(None, [TWO], config()).instance == "p2"
    known = config(bootstrap_aliases=frozenset({("book.example", 80)}))
    assert prefill_at(Meeting("book.example", 80), [TWO], known).instance == "p2"
    with pytest.raises(Refusal, match="several prefills: p1") as refusal:
        prefill_at(None, [TWO, ONE], config())
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("host", "name"),
    [("n2", "10.0.0.2"), ("[fd00::6]", "n6"), ("FD00:0::6", "n6"), ("localhost", "127.0.0.1")],
)
def test_a_host_has_the_files_name_and_any_spelling_of_its_address(host: str, name: str) -> None:
    assert canonical(host, config()) == canonical(name, config())


def test_a_host_that_nobody_registered_is_a_mistake() -> None:
    for host, port in (("203.0.113.9", 8998), ("10.0.0.2.example", 30000), ("", 30000)):
        with pytest.raises(Refusal, match=r"the phone book here is 10\.0\.0\.1:8998") as refusal:
            meant(host, port, ONE, TWO)
        assert refusal.value.status == 400


def test_a_prefill_of_a_known_host_may_come_yet() -> None:
    lost = at("p2", "10.0.0.2", 30000, State.LOST)
    for listed in ((ONE,), (ONE, lost)):
        with pytest.raises(Refusal) as refusal:
            meant("10.0.0.2", 30000, *listed)
        assert refusal.value.status == 503
        assert refusal.value.failure is not None
        assert refusal.value.failure.cause is Cause.BOOTSTRAP_UNKNOWN


def test_a_decode_is_no_prefill_wherever_it_is() -> None:
    decode = msgspec.structs.replace(TWO, instance="d0", role=Role.DECODE)
    with pytest.raises(Refusal):
        meant("10.0.0.2", 30000, decode)


def test_the_phone_book_is_known_by_host_and_port() -> None:
    assert is_phone_book(Meeting(*BOOK), config())
    assert is_phone_book(Meeting("n1", 8998), config())
    assert not is_phone_book(Meeting("n1", 8999), config())
    assert not is_phone_book(Meeting("n2", 8998), config())


@dataclass
class Watch:
    """A clock that a test turns."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Asked:
    """Meetings of a front beside a phone book that counts its readers."""

    meetings: Meetings
    book: FakeBook
    watch: Watch
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def asked() -> AsyncIterator[Asked]:
    async with phone_book() as book, aiohttp.ClientSession() as session:
        book.instances = [ONE, TWO]
        watch = Watch()
        meetings = Meetings(PhoneBook(book.url, session), config(), watch)
        yield Asked(meetings, book, watch)
        await meetings.close()


async def test_a_list_is_asked_for_once_in_a_while() -> None:
    async with asked() as one:
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30000)) == "p2"
        one.book.instances = [ONE, at("p9", "10.0.0.2", 30000)]
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30000)) == "p2"
        one.watch.now_s += FRESH_S + 0.1
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30000)) == "p9"


async def test_who_is_not_in_the_list_is_looked_for_at_once() -> None:
    async with asked() as one:
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30000)) == "p2"
        one.book.instances.append(THREE)
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30001)) == "p3"


async def test_many_questions_at_once_are_one() -> None:
    async with asked() as one:
        many = [one.meetings.prefill(Meeting("10.0.0.2", 30000)) for _ in range(20)]
        assert set(await asyncio.gather(*many)) == {"p2"}
        assert one.meetings._asking is not None


async def test_the_last_list_holds_while_the_phone_book_is_silent() -> None:
    async with asked() as one:
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30000)) == "p2"
        one.meetings._book.base_url = "http://127.0.0.1:9"
        one.watch.now_s += STALE_S - 1
        assert await one.meetings.prefill(Meeting("10.0.0.2", 30000)) == "p2"
        one.watch.now_s += 2
        with pytest.raises(Refusal) as refusal:
            await one.meetings.prefill(Meeting("10.0.0.2", 30000))
        assert refusal.value.status == 503


async def test_without_a_phone_book_from_the_beginning_the_answer_is_503() -> None:
    async with asked() as one:
        one.meetings._book.base_url = "http://127.0.0.1:9"
        with pytest.raises(Refusal) as refusal:
            await one.meetings.prefill(None)
        assert refusal.value.status == 503
        assert refusal.value.failure is not None
        assert refusal.value.failure.cause is Cause.BOOTSTRAP_UNREACHABLE

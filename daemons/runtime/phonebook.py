"""Talking to the phone book: register, look up, and stay registered.

Every call has a deadline and one kind of error. Registration is retried for ever, so a daemon
and its phone book may start, stop and restart in any order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import aiohttp
import msgspec

from daemons.protocol.topology import InstanceInfo, RankRoute, Registration, Topology
from daemons.runtime.log import logger

CALL_S = 2.0  # deadline of one call
BACKOFF_S = (0.1, 2.0)  # first and longest pause between tries

T = TypeVar("T")


class Trouble(StrEnum):
    """Why a call to the phone book brought nothing."""

    UNREACHABLE = "unreachable"  # no answer in time, or a broken one
    UNKNOWN = "unknown"  # it answers, but does not know the instance (yet)
    REFUSED = "refused"  # it understood and says no


class PhoneBookError(Exception):
    """The one error of this module; the text is fit for people."""

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble
        self.text = text


class Deregistration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``DELETE /route``; without ``ranks`` the whole instance goes."""

    instance: str
    epoch: int
    ranks: tuple[tuple[int, int, int, int], ...] | None = None  # (dp, cp, tp, pp)


class PhoneBook:
    """Client of pd-bootstrap at ``base_url`` (``http://host:port``)."""

    def __init__(
        self,
        base_url: str,
        session: aiohttp.ClientSession,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``headers`` go with every call: the token where the cluster has a key."""
        self.base_url = base_url.rstrip("/")
        self._session = session
        self._headers = dict(headers or {})

    async def register(self, registration: Registration) -> None:
        """Put one rank of an instance into the book, or renew its lease."""
        await self._call("PUT", "/route", body=msgspec.json.encode(registration))

    async def deregister(
        self,
        instance: str,
        epoch: int,
        ranks: Sequence[tuple[int, int, int, int]] | None = None,
    ) -> None:
        """Take ranks ``(dp, cp, tp, pp)`` out of the book, or the whole instance."""
        gone = Deregistration(instance, epoch, None if ranks is None else tuple(ranks))
        await self._call("DELETE", "/route", body=msgspec.json.encode(gone))

    async def topology(self, instance: str) -> Topology:
        """Return what an instance is made of, once all its ranks are in."""
        raw = await self._call("GET", "/topology", {"instance": instance})
        return self._read(raw, Topology)

    async def route(
        self,
        instance: str,
        *,
        tp_rank: int = 0,
        pp_rank: int = 0,
        cp_rank: int = 0,
        dp_rank: int = 0,
    ) -> RankRoute:
        """Return where one rank's inbox is."""
        query = {
            "instance": instance,
            "target_tp_rank": str(tp_rank),
            "target_pp_rank": str(pp_rank),
            "prefill_cp_rank": str(cp_rank),
            "prefill_dp_rank": str(dp_rank),
        }
        return self._read(await self._call("GET", "/route", query), RankRoute)

    async def instances(self) -> list[InstanceInfo]:
        """Return every instance of every role, lost ones included."""
        return self._read(await self._call("GET", "/instances"), list[InstanceInfo])

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        where = f"{method} {path} of the phone book at {self.base_url}"
        try:
            async with self._session.request(
                method,
                self.base_url + path,
                params=query,
                data=body,
                headers=self._headers | ({"Content-Type": "application/json"} if body else {}),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=CALL_S),
            ) as response:
                raw = await response.read()
                status = response.status
        except TimeoutError as error:
            raise PhoneBookError(
                Trouble.UNREACHABLE, f"{where}: no answer in {CALL_S} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise PhoneBookError(Trouble.UNREACHABLE, f"{where}: {error}") from error
        if status != 200:
            raise PhoneBookError(_trouble(status), f"{where}: {status} {_said(raw)}")
        return raw

    def _read(self, raw: bytes, form: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=form)
        except msgspec.DecodeError as error:
            raise PhoneBookError(
                Trouble.UNREACHABLE, f"the phone book at {self.base_url} answers strangely: {error}"
            ) from error


async def keep_registered(
    book: PhoneBook,
    current: Callable[[], Sequence[Registration]],
    lease_s: float,
    *,
    changed: asyncio.Event | None = None,
    registered: asyncio.Event | None = None,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Keep what ``current`` returns in the book until cancelled.

    Leases are renewed at a third of ``lease_s``, and at once when ``changed`` is set (it is
    cleared here). ``registered`` is set while the last round went well. Failed rounds are
    repeated for ever, after 0.1 to 2 s with jitter.
    """
    log = logger()
    told = changed if changed is not None else asyncio.Event()
    pause_s = BACKOFF_S[0]
    well: bool | None = None
    while True:
        told.clear()
        try:
            for registration in current():
                await book.register(registration)
        except PhoneBookError as error:
            if well is not False:
                log.warning("registration.failed", trouble=error.trouble.value, text=error.text)
            well = False
            wait_s = pause_s * (0.5 + jitter() / 2)
            pause_s = min(pause_s * 2, BACKOFF_S[1])
        else:
            if not well:
                log.info("registration.done", phone_book=book.base_url)
            well = True
            pause_s, wait_s = BACKOFF_S[0], lease_s / 3
        if registered is not None:
            (registered.set if well else registered.clear)()
        await _first(told, wait_s)


async def _first(told: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await told.wait()
    except TimeoutError:
        return


def _trouble(status: int) -> Trouble:
    if status in (404, 503):
        return Trouble.UNKNOWN
    return Trouble.REFUSED if 400 <= status < 500 else Trouble.UNREACHABLE


def _said(raw: bytes) -> str:
    """Return the message of an error body, or the beginning of whatever came."""
    try:
        return str(msgspec.json.decode(raw)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")

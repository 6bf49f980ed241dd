"""Which prefill is meant by a host and a bootstrap port, the only words that others' routers have.

- Nobody connects to what a body names: it is compared with what the phone book lists, and with our
  own address. What no one registered is refused.
- A prefill is found at its host by the port of its own HTTP face, or by the phone book's port where
  it is the only one there. The phone book's own name means the only prefill of all.
- A list that is not older than ``FRESH_S`` is asked for once; while the phone book is silent its
  last word holds for ``STALE_S``, since workers outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from daemons.front.config import FrontConfig
from daemons.front.lookups import CAUSES, STAGE
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import InstanceInfo, Role, State
from daemons.runtime.http import Refusal, invalid
from daemons.runtime.phonebook import PhoneBook, PhoneBookError

FRESH_S = 1.0
STALE_S = 300.0
HOST_CHARACTERS = 255
LOCALHOST = "127.0.0.1"


class Meeting(NamedTuple):
    """Where a router says that the two legs of a room meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host[:HOST_CHARACTERS]}:{self.port}"


def canonical(host: str, config: FrontConfig) -> str:
    """Return a host as addresses are compared: a name of the cluster file's as its address."""
    bare = host.removeprefix("[").removesuffix("]")
    known = config.host_addresses.get(bare, LOCALHOST if bare == "localhost" else bare)
    try:
        return str(ipaddress.ip_address(known))
    except ValueError:
        return known.lower()


def is_phone_book(at: Meeting, config: FrontConfig) -> bool:
    """Say whether a host and a port are a name of the phone book."""
    if tuple(at) in config.bootstrap_aliases:
        return True
    book = canonical(config.bootstrap_host, config), config.bootstrap_port
    return (canonical(at.host, config), at.port) == book


def is_ours(at: Meeting, config: FrontConfig) -> bool:
    """Say whether a host and a port are those by which this very prefill is found."""
    is_here = canonical(at.host, config) == canonical(config.advertise, config)
    return is_here and at.port in (config.port, config.bootstrap_port)


def prefill_at(
    at: Meeting | None, listed: Sequence[InstanceInfo], config: FrontConfig
) -> InstanceInfo:
    """Return the prefill that is meant; ``at`` None: nothing was said.

    Raises:
        Refusal: 400, nobody's place, or that of several; 503, whose place it is, is not there now.
    """
    prefills = [one for one in listed if one.role is Role.PREFILL]
    if at is None:
        return _only(prefills, "")
    host = canonical(at.host, config)
    there = [one for one in prefills if canonical(one.http_host, config) == host]
    exact = [one for one in there if one.http_port == at.port]
    if exact:
        return _only(exact, f" at {at}")
    if at.port == config.bootstrap_port and there:
        return _only(there, f" at {at}")
    if is_phone_book(at, config):
        return _only(prefills, "")
    hosts = {canonical(one.http_host, config) for one in listed}
    if host in hosts | {canonical(name, config) for name in config.host_addresses}:
        detail = f"no prefill is registered at {at}; {_here(config)}"
        raise Refusal.of(Failure(Cause.BOOTSTRAP_UNKNOWN, STAGE, "", detail))
    raise invalid(f"bootstrap_host, bootstrap_port: nobody registered at {at}; {_here(config)}")


class Meetings:
    """The phone book's list of prefills, asked for as seldom as will do."""

    def __init__(
        self, book: PhoneBook, config: FrontConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._book = book
        self._config = config
        self._clock = clock
        self._listed: list[InstanceInfo] = []
        self._listed_s: float | None = None  # when; None: never
        self._asking: asyncio.Task[PhoneBookError | None] | None = None

    async def prefill(self, at: Meeting | None) -> str:
        """Return the name of the prefill that is meant.

        Raises:
            Refusal: see :func:`prefill_at`; 503, the phone book is silent.
        """
        if self._age_s() <= FRESH_S:
            with contextlib.suppress(Refusal):  # what is not there may have come this moment
                return prefill_at(at, self._listed, self._config).instance
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        error = await asyncio.shield(self._asking)
        if error is not None and self._age_s() > STALE_S:
            failure = Failure(CAUSES[error.trouble], STAGE, "", error.text)
            raise Refusal.of(failure) from error
        return prefill_at(at, self._listed, self._config).instance

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _age_s(self) -> float:
        return float("inf") if self._listed_s is None else self._clock() - self._listed_s

    async def _ask(self) -> PhoneBookError | None:
        try:
            self._listed = await self._book.instances()
        except PhoneBookError as error:
            return error
        self._listed_s = self._clock()
        return None


def _here(config: FrontConfig) -> str:
    return f"the phone book here is {config.bootstrap_host}:{config.bootstrap_port}"


def _only(prefills: Sequence[InstanceInfo], where: str) -> InstanceInfo:
    """Return the one that is ready."""
    ready = sorted(
        (one for one in prefills if one.state is State.READY), key=lambda one: one.instance
    )
    if not ready:
        told = ", ".join(f"{one.instance} is {one.state.value}" for one in prefills)
        detail = f"no prefill is ready{where}" + (f": {told}" if told else "")
        raise Refusal.of(Failure(Cause.BOOTSTRAP_UNKNOWN, STAGE, "", detail))
    if len(ready) > 1:
        names = ", ".join(f"{one.instance} ({one.http_host}:{one.http_port})" for one in ready)
        raise invalid(
            f"there are several prefills{where}: {names}; bootstrap_instance, or bootstrap_host and"
            " bootstrap_port with the address of one of them, would tell which"
        )
    return ready[0]

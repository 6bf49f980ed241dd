"""The parts of a body that both APIs share: prompts, rooms, times, names.

A worker serves a room that the balancer drew. It never talks to a host that a client named: that
is the phone book's name, or tells which registered prefill is meant (``meetings``); and each
sample of each prompt has a room of its own, prompt by prompt. A router that draws one room for
several texts, or rooms of more than 53 bits, gets rooms that both legs derive from its own in the
same way. A decode that may prefill by itself does so when it is asked to
(``"local_prefill": true``; a balancer draws the rooms as ever, else the front does), and when
nothing of a pair is in the body.
The first thing that is wrong is told, with its name and what would be right.
"""

from __future__ import annotations

import hashlib
import secrets
import string
import time
from typing import TypeVar

import msgspec
from aiohttp import web

from daemons.front.config import FrontConfig
from daemons.front.meetings import Meeting, is_ours, is_phone_book
from daemons.protocol.api.pair import PairBody
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import SALT_LIMIT
from daemons.protocol.ids import ROOM_LIMIT, RoomKey, is_instance_name
from daemons.protocol.topology import Role
from daemons.runtime.http import Refusal, invalid

ATTEMPT_LIMIT = 1000
TIMEOUT_HEADER = "X-Request-Timeout"  # seconds that the client waits in total
PRIORITY_HEADER = "X-Priority"  # as the body's field priority
PRIORITY_LIMIT = 100
ID_HEADER = "X-Request-ID"
TIMEOUT_LIMIT_S = 86400.0
CREATED_HEADER = "X-PD-Created"  # unix seconds; both legs of a request then tell the same
RID_LIMIT = 256  # characters
FOREIGN_ROOM_LIMIT = 2**63  # SGLang's routers draw rooms below
RID_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """Where one sample is served.

    ``prefill`` is "" when the body does not say by whom, a decode's own name when by itself; then
    ``meeting`` may tell it.
    """

    key: RoomKey
    prefill: str
    priority: int = 0  # higher ones go first
    cache_salt: str = ""
    meeting: Meeting | None = None


def places(
    body: PairBody,
    prompts: int,
    config: FrontConfig,
    priority: str | None = None,
    *,
    samples: int = 1,
) -> list[Place]:
    """Return the place of each of ``samples`` samples of ``prompts`` prompts, prompt by prompt.

    ``priority`` is the header's.

    Raises:
        Refusal: 400, a room is missing, out of range, shared; another phone book is named; the
            priority is none, the salt of the cache too long; or a prefill of our own is asked for
            that may not be.
    """
    urgency = _priority(body.priority if body.priority is not None else priority)
    count = prompts * samples
    if count > config.max_prompt_items:
        raise invalid(f"{count} texts in one request, the limit is {config.max_prompt_items}")
    meetings = _meetings(body, prompts, samples, config)
    local = _is_local(body, config)
    rooms = _rooms(body, prompts, samples, local=local)
    attempts = each("bootstrap_attempt", body.bootstrap_attempt or 1, prompts, samples)
    prefills = each("bootstrap_instance", body.bootstrap_instance, prompts, samples)
    salts = each("cache_salt", body.cache_salt, prompts, samples)
    found = [
        Place(
            _key(room, attempt),
            _prefill(name, at, config, local=local),
            urgency,
            _salt(salt),
            at if name is None else None,
        )
        for room, attempt, name, at, salt in zip(
            rooms, attempts, prefills, meetings, salts, strict=True
        )
    ]
    if len({place.key for place in found}) < count:
        raise invalid("bootstrap_room: two texts share a room")
    return found


def timeout_s(request: web.Request, config: FrontConfig) -> float:
    """Return how long the client waits in total.

    Raises:
        Refusal: 400, the header is no time.
    """
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return config.timers.total_s
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= TIMEOUT_LIMIT_S:
        raise invalid(f"{TIMEOUT_HEADER}: {given!r}; seconds, above 0, at most {TIMEOUT_LIMIT_S:g}")
    return seconds


def created_s(request: web.Request) -> int:
    """Return when a request came, unix seconds: as the balancer says, so that both legs agree."""
    said = request.headers.get(CREATED_HEADER, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 12 else int(time.time())


def request_id(request: web.Request, given: str | None = None) -> str:
    """Return the id of a request: the body's, else the header's, else a new one.

    Raises:
        Refusal: 400, it is too long or has characters that do not belong into an id.
    """
    rid = given or request.headers.get(ID_HEADER) or secrets.token_hex(16)
    if len(rid) > RID_LIMIT or not RID_CHARACTERS.issuperset(rid):
        raise invalid(f"request id: 1 to {RID_LIMIT} printable characters of ASCII, no space")
    return rid


def request_ids(
    request: web.Request, given: str | list[str] | None, prompts: int, samples: int = 1
) -> list[str]:
    """Return the id of each sample of each prompt; where there are several they are numbered.

    Raises:
        Refusal: 400, see :func:`request_id`, or another number of ids than of prompts.
    """
    if isinstance(given, list):
        names: list[str] = each("rid", given, prompts)
        rids = [request_id(request, one) for one in names]
        return rids if samples == 1 else [f"{rid}_{n}" for rid in rids for n in range(samples)]
    rid, count = request_id(request, given), prompts * samples
    return [rid] if count == 1 else [f"{rid}_{n}" for n in range(count)]


def each(name: str, value: list[T] | T, prompts: int, samples: int = 1) -> list[T]:
    """Return one value per sample of each prompt: a scalar holds for all, an entry for its prompt.

    Raises:
        Refusal: 400, a list of another length.
    """
    if not isinstance(value, list):
        return [value] * (prompts * samples)
    if len(value) == prompts * samples:
        return value
    if len(value) != prompts:
        told = f"{prompts} prompts" + (f" of {samples} samples each" if samples > 1 else "")
        raise invalid(f"{name}: {len(value)} entries for {told}")
    return [one for one in value for _ in range(samples)]


def too_long(message: str) -> Refusal:
    """Return the 400 for what does not fit; the message shows both numbers."""
    return Refusal(400, message, failure=Failure(Cause.REQUEST_TOO_LONG, "intake", "", message))


def derived_room(room: int, sample: int) -> int:
    """Return the room of a sample whose router drew one room for all of them.

    The same on every worker; 53 bits of a hash, so that two rooms hardly ever meet.
    """
    if sample == 0 and room < ROOM_LIMIT:
        return room
    digest = hashlib.blake2b(f"{room}:{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (ROOM_LIMIT - 1) + 1


def _key(room: int, attempt: int) -> RoomKey:
    if not 0 < room < ROOM_LIMIT:
        raise invalid(f"bootstrap_room: {room}; a room is above 0 and below 2**63")
    if not 0 < attempt <= ATTEMPT_LIMIT:
        raise invalid(f"bootstrap_attempt: {attempt}; it is 1 to {ATTEMPT_LIMIT}")
    return RoomKey(room, attempt)


def _priority(given: int | str | None) -> int:
    try:
        priority = int(given or 0)
    except ValueError:
        priority = PRIORITY_LIMIT + 1
    if abs(priority) > PRIORITY_LIMIT:
        limits = f"-{PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
        raise invalid(f"priority: {str(given)[:40]!r}; a whole number, {limits}")
    return priority


def _salt(given: str | None) -> str:
    if given is not None and len(given) > SALT_LIMIT:
        raise invalid(f"cache_salt: {len(given)} characters, the limit is {SALT_LIMIT}")
    return given or ""


def _is_local(body: PairBody, config: FrontConfig) -> bool:
    """Say whether this decode is to compute the prompts by itself, and may."""
    if body.local_prefill:
        if config.role is not Role.DECODE:
            raise invalid("local_prefill: only a decode goes on from its own prefill")
        if not config.local_prefill:
            raise invalid(f"local_prefill: the settings of {config.instance!r} do not allow it")
        return True
    named = (body.bootstrap_host, body.bootstrap_port, body.bootstrap_room, body.bootstrap_instance)
    return config.local_prefill and body.local_prefill is None and named == (None,) * len(named)


def _rooms(body: PairBody, prompts: int, samples: int, *, local: bool) -> list[int]:
    """Return a room per sample; those that a router did not draw are derived from its own."""
    given = body.bootstrap_room
    if given is None and local:
        return [secrets.randbelow(ROOM_LIMIT - 1) + 1 for _ in range(prompts * samples)]
    if given is None:
        raise invalid(
            "bootstrap_room is missing: this is one worker of a prefill/decode pair,"
            " send requests to the balancer"
        )
    drawn = each("bootstrap_room", given, prompts, samples)
    listed = len(given) if isinstance(given, list) else 1
    sharing = len(drawn) // listed  # texts that one room was drawn for
    return [
        derived_room(room, n % sharing) if 0 < room < FOREIGN_ROOM_LIMIT else room
        for n, room in enumerate(drawn)
    ]


def _prefill(name: str | None, at: Meeting | None, config: FrontConfig, *, local: bool) -> str:
    if at is not None and not is_phone_book(at, config) and name is not None:
        raise _no_phone_book(at, config)
    if config.role is Role.PREFILL or local:
        if name not in (None, config.instance):
            raise invalid(f"bootstrap_instance: {name!r}; this is {config.instance!r}")
        if at is not None and not is_phone_book(at, config) and not is_ours(at, config):
            raise _no_phone_book(at, config)
        return config.instance
    if name is not None and not is_instance_name(name):
        raise invalid(f"bootstrap_instance: {name[:64]!r} is no name of an instance")
    return name or ""


def _meetings(
    body: PairBody, prompts: int, samples: int, config: FrontConfig
) -> list[Meeting | None]:
    """Return the place that each sample's legs were told to meet at; None: nothing was said."""
    hosts = each("bootstrap_host", body.bootstrap_host, prompts, samples)
    ports = each("bootstrap_port", body.bootstrap_port, prompts, samples)
    return [
        None
        if host is None and port is None
        else Meeting(
            config.bootstrap_host if host is None else host,
            config.bootstrap_port if port is None else port,
        )
        for host, port in zip(hosts, ports, strict=True)
    ]


def _no_phone_book(at: Meeting, config: FrontConfig) -> Refusal:
    here = f"the phone book here is {config.bootstrap_host}:{config.bootstrap_port}"
    if config.role is Role.PREFILL:
        here += f", this prefill is {config.advertise}:{config.port}"
    return invalid(f"bootstrap_host, bootstrap_port: {at}; {here}")

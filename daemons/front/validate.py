"""The parts of a body that both APIs share: prompts, rooms, times, names.

A worker serves a room that the balancer drew. It never talks to a host that a client named, so
the phone book in the body must be the configured one; and each item of a batch has a room of its
own. A decode that may prefill by itself does so when it is asked to (``"local_prefill": true``; a
balancer draws the rooms as ever, else the front does), and when nothing of a pair is in the body.
The first thing that is wrong is told, with its name and what would be right.
"""

from __future__ import annotations

import secrets
import string
from typing import TypeVar

import msgspec
from aiohttp import web

from daemons.front.config import FrontConfig
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.ids import ROOM_LIMIT, RoomKey, is_instance_name
from daemons.protocol.topology import Role
from daemons.runtime.http import Refusal, invalid

ATTEMPT_LIMIT = 1000
TIMEOUT_HEADER = "X-Request-Timeout"  # seconds that the client waits in total
PRIORITY_HEADER = "X-Priority"  # as the body's field priority
PRIORITY_LIMIT = 100
ID_HEADER = "X-Request-ID"
TIMEOUT_LIMIT_S = 86400.0
RID_LIMIT = 256  # characters
RID_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)

T = TypeVar("T")


class PairBody(msgspec.Struct, frozen=True):
    """Where a body says who works together on it; scalars, or lists with one entry per prompt."""

    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None
    bootstrap_instance: str | list[str | None] | None = None
    bootstrap_attempt: int | list[int] | None = None
    local_prefill: bool | None = None  # the decode computes the prompts itself, nobody else does
    priority: int | None = None  # goes before the header


class Place(msgspec.Struct, frozen=True):
    """Where one prompt is served.

    ``prefill`` is "" when the body does not say by whom, a decode's own name when by itself.
    """

    key: RoomKey
    prefill: str
    priority: int = 0  # higher ones go first


def places(
    body: PairBody, prompts: int, config: FrontConfig, priority: str | None = None
) -> list[Place]:
    """Return the place of each of ``prompts`` prompts; ``priority`` is the header's.

    Raises:
        Refusal: 400, a room is missing, out of range, shared; another phone book is named; the
            priority is none; or a prefill of our own is asked for that may not be.
    """
    urgency = _priority(body.priority if body.priority is not None else priority)
    if prompts > config.max_prompt_items:
        raise invalid(f"{prompts} prompts in one request, the limit is {config.max_prompt_items}")
    _check_phone_book(body, prompts, config)
    local = _is_local(body, config)
    rooms = _rooms(body, prompts, local=local)
    attempts = each("bootstrap_attempt", body.bootstrap_attempt or 1, prompts)
    prefills = each("bootstrap_instance", body.bootstrap_instance, prompts)
    found = [
        Place(_key(room, attempt), _prefill(name, config, local=local), urgency)
        for room, attempt, name in zip(rooms, attempts, prefills, strict=True)
    ]
    if len({place.key for place in found}) < prompts:
        raise invalid("bootstrap_room: two prompts share a room")
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


def request_id(request: web.Request, given: str | None = None) -> str:
    """Return the id of a request: the body's, else the header's, else a new one.

    Raises:
        Refusal: 400, it is too long or has characters that do not belong into an id.
    """
    rid = given or request.headers.get(ID_HEADER) or secrets.token_hex(16)
    if len(rid) > RID_LIMIT or not RID_CHARACTERS.issuperset(rid):
        raise invalid(f"request id: 1 to {RID_LIMIT} printable characters of ASCII, no space")
    return rid


def request_ids(request: web.Request, given: str | list[str] | None, prompts: int) -> list[str]:
    """Return the id of each prompt of a request; those of a batch are numbered.

    Raises:
        Refusal: 400, see :func:`request_id`, or another number of ids than of prompts.
    """
    if isinstance(given, list):
        rids: list[str] = each("rid", given, prompts)
        return [request_id(request, one) for one in rids]
    rid = request_id(request, given)
    return [rid] if prompts == 1 else [f"{rid}_{n}" for n in range(prompts)]


def each(name: str, value: list[T] | T, prompts: int) -> list[T]:
    """Return one value per prompt: a scalar holds for all.

    Raises:
        Refusal: 400, a list of another length.
    """
    if not isinstance(value, list):
        return [value] * prompts
    if len(value) != prompts:
        raise invalid(f"{name}: {len(value)} entries for {prompts} prompts")
    return value


def too_long(message: str) -> Refusal:
    """Return the 400 for what does not fit; the message shows both numbers."""
    return Refusal(400, message, failure=Failure(Cause.REQUEST_TOO_LONG, "intake", "", message))


def _key(room: int, attempt: int) -> RoomKey:
    if not 0 < room < ROOM_LIMIT:
        raise invalid(f"bootstrap_room: {room}; a room is above 0 and below 2**53")
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


def _rooms(body: PairBody, prompts: int, *, local: bool) -> list[int]:
    given = body.bootstrap_room
    if given is None and local:
        return [secrets.randbelow(ROOM_LIMIT - 1) + 1 for _ in range(prompts)]
    if given is None:
        raise invalid(
            "bootstrap_room is missing: this is one worker of a prefill/decode pair,"
            " send requests to the balancer"
        )
    if prompts > 1 and not isinstance(given, list):
        raise invalid(f"bootstrap_room: {prompts} prompts need a list with a room for each")
    return each("bootstrap_room", given, prompts)


def _prefill(name: str | None, config: FrontConfig, *, local: bool) -> str:
    if config.role is Role.PREFILL or local:
        if name not in (None, config.instance):
            raise invalid(f"bootstrap_instance: {name!r}; this is {config.instance!r}")
        return config.instance
    if name is not None and not is_instance_name(name):
        raise invalid(f"bootstrap_instance: {name[:64]!r} is no name of an instance")
    return name or ""


def _check_phone_book(body: PairBody, prompts: int, config: FrontConfig) -> None:
    expected = (config.bootstrap_host, config.bootstrap_port)
    hosts = each("bootstrap_host", body.bootstrap_host, prompts)
    ports = each("bootstrap_port", body.bootstrap_port, prompts)
    for host, port in zip(hosts, ports, strict=True):
        named = (expected[0] if host is None else host, expected[1] if port is None else port)
        if named != expected and named not in config.bootstrap_aliases:
            raise invalid(
                f"bootstrap_host, bootstrap_port: {named[0][:255]}:{named[1]};"
                f" the phone book here is {expected[0]}:{expected[1]}"
            )

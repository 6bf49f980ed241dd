"""One look at the whole cluster: what the file says, what the phone book and each daemon say.

Missing answers are part of the picture, never an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from daemons.cluster.load import BOOTSTRAP_NAME, LB_NAME
from daemons.cluster.model import Cluster
from daemons.protocol.ids import room_hex
from daemons.protocol.story import RoomRow, Story, WorkerStatus
from daemons.protocol.topology import FleetEvent, InstanceInfo
from pdctl.client import Refused, Unreachable, call, get_json, message_of, together
from pdctl.places import WORKERS, Place, places, with_phone_book

T = TypeVar("T")
Trouble = Unreachable | Refused


@dataclass(frozen=True, slots=True)
class Survey:
    """What everybody said at one moment."""

    places: dict[str, Place]
    instances: dict[str, InstanceInfo]  # of the phone book; {} when it is silent
    phone_book_trouble: str  # "" when it answers
    statuses: dict[str, WorkerStatus]  # of workers and pd-lb, as far as they answer
    lb_health: tuple[int, str]  # status and text of its /health; (0, why) when silent
    troubles: dict[str, str]  # daemon -> why it gave no status


def look(cluster: Cluster) -> Survey:
    """Ask the phone book, then every daemon at once."""
    known = places(cluster)
    book = known[BOOTSTRAP_NAME]
    instances, trouble = phone_book(book)
    known = with_phone_book(known, instances)
    tellers = {name: place for name, place in known.items() if name != BOOTSTRAP_NAME}
    asked = {name: place for name, place in tellers.items() if place.url}
    answers = together(
        {name: _asking(place, "/status", WorkerStatus) for name, place in asked.items()}
    )
    statuses = {name: said for name, said in answers.items() if isinstance(said, WorkerStatus)}
    troubles = {
        name: str(said) for name, said in answers.items() if not isinstance(said, WorkerStatus)
    }
    for name, place in tellers.items():
        if not place.url:
            troubles[name] = "not in the phone book"
    return Survey(
        known,
        {info.instance: info for info in instances},
        trouble,
        statuses,
        _health(known[LB_NAME]),
        troubles,
    )


def phone_book(book: Place) -> tuple[list[InstanceInfo], str]:
    """Return the phone book's list, or [] and why there is none."""
    try:
        return get_as(book, "/instances", list[InstanceInfo]), ""
    except (Unreachable, Refused) as trouble:
        return [], str(trouble)


def fleet_events(book: Place) -> tuple[list[FleetEvent], float]:
    """Return the phone book's events, and how far its clock is behind ours, in seconds.

    Raises:
        Unreachable: no answer, or a strange one.
        Refused: it has no such thing: an older version.
    """
    began_s = time.time()
    said = get_as(book, "/events", _Events)
    return said.events, (began_s + time.time()) / 2 - said.now_s


class _Events(msgspec.Struct, frozen=True):
    now_s: float
    events: list[FleetEvent]


def located(cluster: Cluster) -> dict[str, Place]:
    """Return every daemon's place with ports from the phone book, as far as it answers."""
    known = places(cluster)
    instances, _ = phone_book(known[BOOTSTRAP_NAME])
    return with_phone_book(known, instances)


def workers_of(known: dict[str, Place]) -> dict[str, WorkerStatus]:
    """Return the status of every worker that answers."""
    asked = {name: place for name, place in known.items() if place.role in WORKERS and place.url}
    answers = together(
        {name: _asking(place, "/status", WorkerStatus) for name, place in asked.items()}
    )
    return {name: said for name, said in answers.items() if isinstance(said, WorkerStatus)}


def rooms_of(known: dict[str, Place]) -> tuple[dict[str, list[RoomRow]], dict[str, str]]:
    """Return the rows of ``GET /rooms`` by daemon, and who could not be asked and why."""
    return _ask_all(known, "/rooms", lambda said: msgspec.convert(said["rooms"], list[RoomRow]))


def stories_of(known: dict[str, Place], room: int) -> tuple[list[Story], dict[str, str]]:
    """Return every daemon's stories of a room, and who could not be asked and why."""

    def read(said: Any) -> list[Story]:
        return msgspec.convert(said["stories"], list[Story])

    told, troubles = _ask_all(known, f"/rooms/{room_hex(room)}", read)
    return [story for stories in told.values() for story in stories], troubles


def stories_at(place: Place, room: int) -> list[Story]:
    """Return one daemon's stories of a room, [] if it has none; raises Unreachable, Refused."""
    try:
        said = get_json(f"{place.url}/rooms/{room_hex(room)}", token=place.token)
        return msgspec.convert(said["stories"], list[Story])
    except Refused as refused:
        if refused.status == 404:
            return []
        raise
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise Unreachable(f"{place.instance} answers strangely: {error}") from error


def get_as(place: Place, path: str, form: type[T]) -> T:
    """GET and convert; raises Unreachable also for an answer of another form."""
    url = place.url + path
    said = get_json(url, token=place.token)
    try:
        return msgspec.convert(said, form)
    except msgspec.ValidationError as error:
        raise Unreachable(f"{url} answers strangely: {error}") from error


def _asking(place: Place, path: str, form: type[T]) -> Callable[[], T]:
    return lambda: get_as(place, path, form)


def _ask_all(
    known: dict[str, Place], path: str, read: Callable[[Any], list[T]]
) -> tuple[dict[str, list[T]], dict[str, str]]:
    def asking(place: Place) -> Callable[[], list[T]]:
        url = place.url + path

        def ask() -> list[T]:
            try:
                return read(get_json(url, token=place.token))
            except Refused as refused:
                if refused.status == 404:  # it does not know the room
                    return []
                raise
            except (msgspec.ValidationError, KeyError, TypeError) as error:
                raise Unreachable(f"{url} answers strangely: {error}") from error

        return ask

    tellers = {name: place for name, place in known.items() if name != BOOTSTRAP_NAME}
    answers = together({name: asking(place) for name, place in tellers.items() if place.url})
    told = {name: said for name, said in answers.items() if isinstance(said, list)}
    troubles = {name: str(said) for name, said in answers.items() if not isinstance(said, list)}
    troubles |= {name: "not in the phone book" for name, place in tellers.items() if not place.url}
    return told, troubles


def _health(place: Place) -> tuple[int, str]:
    try:
        answer = call("GET", f"{place.url}/health")
    except Unreachable as trouble:
        return 0, str(trouble)
    return answer.status, message_of(answer.body)

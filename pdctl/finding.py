"""What a check finds: a name, a status, the value that was measured, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    status: Status
    value: str
    hint: str = ""
    pair: tuple[str, str] | None = None  # prefill and decode of a write that was tried
    bytes_per_s: float | None = None  # of that write


@dataclass(frozen=True, slots=True)
class Examination:
    """Checks that are made together, and their names, known before they are made."""

    names: tuple[str, ...]
    make: Callable[[], Iterable[Check]]


def one(name: str, make: Callable[[], Check]) -> Examination:
    """Return an examination of one check."""
    return Examination((name,), lambda: (make(),))


def worst(found: Iterable[Check]) -> Status:
    """Return the worst status of all."""
    seen = {check.status for check in found}
    return next((status for status in (Status.FAIL, Status.WARN) if status in seen), Status.OK)


def bad_first(found: Iterable[Check]) -> Iterator[Check]:
    """Yield failures, then warnings, then the rest."""
    order = {Status.FAIL: 0, Status.WARN: 1, Status.OK: 2}
    yield from sorted(found, key=lambda check: order[check.status])

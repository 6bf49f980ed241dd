"""Which workers there are, which pairs may serve, and how many rooms each has: pure.

- A pair may serve when both are ready and their fingerprints are equal (a worker without one was
  listed by hand: the workers' own handshake decides).
- Rooms in flight are counted per life, so a replacement begins with none.
- A worker that refused a connection, or says that it is leaving, is *struck*: out of the picking
  until the phone book has heard from it again (a longer lease or a new epoch), or its health
  check succeeds.
- The last view holds while the phone book is silent, for ``stale_s``: workers do not depend on
  it, and a dead one strikes itself out.
- A restarted phone book knows nobody at first; workers that only its earlier life knew stay until
  the lease runs out that they had there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from daemons.protocol.topology import (
    Fingerprint,
    InstanceInfo,
    Role,
    State,
    differences,
)

RENEWED_S = 0.1  # a lease that ends so much later was renewed

Life = tuple[str, int]  # instance, epoch


@dataclass(frozen=True, slots=True)
class Worker:
    """One prefill or decode as the last view has it."""

    name: str
    role: Role
    epoch: int
    state: State
    host: str
    port: int
    fingerprint: Fingerprint | None = None
    lease_ends_s: float = 0.0
    book: int = 0  # epoch of the phone book that told us
    struck: bool = False
    life: Life = field(init=False, repr=False, compare=False)  # what rooms are counted by

    def __post_init__(self) -> None:
        object.__setattr__(self, "life", (self.name, self.epoch))

    @property
    def condition(self) -> str:
        """Its state, or ``struck``."""
        return "struck" if self.struck else self.state.value

    @property
    def is_pickable(self) -> bool:
        """Whether it may get new rooms."""
        return self.state is State.READY and not self.struck


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode that may serve a room together, or a decode that does both."""

    prefill: Worker | None  # None: decode computes the prompt by itself
    decode: Worker
    workers: tuple[Worker, ...] = field(init=False, repr=False, compare=False)  # who has a leg

    def __post_init__(self) -> None:
        both = (self.decode,) if self.prefill is None else (self.prefill, self.decode)
        object.__setattr__(self, "workers", both)

    def __str__(self) -> str:
        if self.prefill is None:
            return f"{self.decode.name} alone"
        return f"{self.prefill.name} -> {self.decode.name}"


class Match(NamedTuple):
    """A prefill, and the pairs that it may serve in."""

    prefill: Worker
    pairs: list[Pair]


class Pick(NamedTuple):
    """What the policies chose, and why, in words for the room's story."""

    pair: Pair
    because: str


class Wish(msgspec.Struct, frozen=True):  # a tenth of a frozen dataclass to make
    """What is known of a request when its pair is chosen."""

    rooms: int = 0
    tokens: int = 0  # of all prompts and texts, estimated
    prompt_tokens: int = 0  # of one prompt, on average
    prompt: bytes = b""  # text or token ids as they came; only compared
    session: str = ""  # what keeps requests together, "" when nothing does


class Candidate(msgspec.Struct, frozen=True):
    """One worker that may be chosen, and the load that we know of."""

    worker: Worker
    rooms: int = 0  # in flight
    tokens: int = 0  # of those rooms, estimated
    free_tokens: int | None = None  # that it can still promise; None: not known
    rate: float = 0.0  # measured bytes/s between it and its partner; 0: not known


@dataclass(slots=True)
class Fleet:
    """The last view, and the load that we put on it."""

    stale_s: float
    seen_s: float | None = None  # when the last view came; None: never
    workers: dict[str, Worker] = field(default_factory=dict)
    rooms: Counter[Life] = field(default_factory=Counter)
    tokens: Counter[Life] = field(default_factory=Counter)  # of those rooms, estimated
    _pairs: list[Pair] | None = None
    matches: list[Match] = field(default_factory=list)  # the same pairs as :meth:`pairs` gave last
    partners: list[Worker] = field(default_factory=list)  # the decodes in them

    def see(self, infos: Iterable[InstanceInfo], now_s: float) -> list[tuple[str, str]]:
        """Take a new view; return each worker that came, went or changed, and what it is now."""
        told = list(infos)
        book = next((info.epoch for info in told if info.role is Role.BOOTSTRAP), 0)
        seen = {
            info.instance: self._worker(info, book, now_s)
            for info in told
            if info.role in (Role.PREFILL, Role.DECODE)
        }
        for name, worker in self.workers.items():
            if name not in seen and worker.book != book and now_s < worker.lease_ends_s:
                seen[name] = worker
        changes = _changes(self.workers, seen)
        self.workers = dict(sorted(seen.items()))
        self.seen_s = now_s
        self._pairs = None
        return changes

    def pairs(self, now_s: float) -> Sequence[Pair]:
        """Return the pairs that may serve, in name order."""
        if self._is_stale(now_s):
            return ()
        if self._pairs is None:
            self._pairs = [
                Pair(prefill, decode)
                for prefill in self._of(Role.PREFILL)
                for decode in self._of(Role.DECODE)
                if prefill.is_pickable and decode.is_pickable and not _unlike(prefill, decode)
            ]
            self.matches = _matches(self._pairs)
            self.partners = [*{pair.decode.life: pair.decode for pair in self._pairs}.values()]
        return self._pairs

    def why_no_pair(self, now_s: float) -> str:
        """Return what keeps every pair from serving, in words."""
        if self.seen_s is None:
            return "the phone book has not answered yet"
        if self._is_stale(now_s):
            return f"the phone book has been silent for {now_s - self.seen_s:.0f} s"
        for role in (Role.PREFILL, Role.DECODE):
            known = self._of(role)
            if not known:
                return f"no {role.value} is registered"
            if not any(worker.is_pickable for worker in known):
                return f"no {role.value} is ready: " + ", ".join(map(_told, known))
        reasons = [
            f"{prefill.name} and {decode.name} do not match: {_unlike(prefill, decode)}"
            for prefill in self._of(Role.PREFILL)
            for decode in self._of(Role.DECODE)
            if prefill.is_pickable and decode.is_pickable
        ]
        return "; ".join(reasons[:4])

    def lone_decodes(self, now_s: float) -> Sequence[Worker]:
        """Return the decodes that may serve without a prefill, in name order."""
        if self._is_stale(now_s):
            return ()
        return [worker for worker in self._of(Role.DECODE) if worker.is_pickable]

    def has_pickable(self, role: Role) -> bool:
        """Say whether any worker of a role may get new rooms."""
        return any(worker.is_pickable for worker in self._of(role))

    def take(self, pair: Pair, rooms: int, tokens: int = 0) -> None:
        """Count rooms on the workers of a pair."""
        for worker in pair.workers:
            self.rooms[worker.life] += rooms
            self.tokens[worker.life] += tokens

    def give_back(self, worker: Worker, rooms: int, tokens: int = 0) -> None:
        """Count rooms off; a life without rooms leaves no trace."""
        life = worker.life
        left = self.rooms[life] - rooms
        if left <= 0:
            self.rooms.pop(life, None)
            self.tokens.pop(life, None)
            return
        self.rooms[life] = left
        self.tokens[life] -= tokens

    def strike(self, worker: Worker) -> None:
        """Take a worker out of the picking; another life of the same name stays."""
        known = self.workers.get(worker.name)
        if known is not None and known.life == worker.life:
            self.workers[worker.name] = replace(known, struck=True)
            self._pairs = None

    def _worker(self, info: InstanceInfo, book: int, now_s: float) -> Worker:
        known = self.workers.get(info.instance)
        ends_s = now_s + info.lease_left_s
        struck = (
            known is not None
            and known.struck
            and known.epoch == info.epoch
            and ends_s < known.lease_ends_s + RENEWED_S
        )
        return Worker(
            info.instance,
            info.role,
            info.epoch,
            info.state,
            info.http_host,
            info.http_port,
            info.fingerprint,
            known.lease_ends_s if struck and known else ends_s,
            book,
            struck,
        )

    def _of(self, role: Role) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.role is role]

    def _is_stale(self, now_s: float) -> bool:
        return self.seen_s is None or now_s - self.seen_s > self.stale_s


def _matches(pairs: Iterable[Pair]) -> list[Match]:
    found: dict[Life, Match] = {}
    for pair in pairs:
        if pair.prefill is not None:
            match = found.setdefault(pair.prefill.life, Match(pair.prefill, []))
            match.pairs.append(pair)
    return [*found.values()]


def _unlike(prefill: Worker, decode: Worker) -> str:
    """Return how two workers differ, "" when they match."""
    if prefill.fingerprint is None or decode.fingerprint is None:
        return ""
    return ", ".join(
        line.replace("ours", prefill.name, 1).replace("theirs", decode.name, 1)
        for line in differences(prefill.fingerprint, decode.fingerprint)
    )


def _told(worker: Worker) -> str:
    if worker.struck:
        return f"{worker.name} refuses requests"
    return f"{worker.name} is {worker.condition}"


def _changes(before: dict[str, Worker], after: dict[str, Worker]) -> list[tuple[str, str]]:
    changes = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if now is None:
            changes.append((name, "gone"))
        elif was is None or (was.epoch, was.condition) != (now.epoch, now.condition):
            changes.append((name, now.condition))
    return changes

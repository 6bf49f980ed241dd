"""Who is registered: pure, times are arguments in seconds of one steady clock.

- A life is an instance name with an epoch; a newer epoch replaces the older one with all its
  ranks, an older one is refused for as long as the newer one is remembered.
- All ranks of a life tell the same role, shape and fingerprint; a different one is refused with
  both values and changes nothing. A rank that says it twice counts once.
- Every entry has a lease. When one runs out its instance is lost, and forgotten later.
- A rank that is still starting may register without inbox and fingerprint; it counts when it has
  both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from daemons.cluster.load import BOOTSTRAP_NAME
from daemons.protocol.topology import (
    Fingerprint,
    InstanceInfo,
    RankRoute,
    Registration,
    Role,
    Shape,
    State,
    Topology,
    differences,
)

INSTANCES_LIMIT = 4096
WORKERS = frozenset({Role.PREFILL, Role.DECODE})


class Coords(NamedTuple):
    """Which rank of an instance."""

    dp: int
    cp: int
    tp: int
    pp: int


class Invalid(Exception):
    """A registration that contradicts itself."""


class Conflict(Exception):
    """What is registered says otherwise; the text shows both values."""


class Unknown(Exception):
    """No such instance or rank."""


class NotReady(Exception):
    """Known or expected, but not all there yet, or not any more."""


class Change(StrEnum):
    """What a registration did, and what time does."""

    NEW = "new"
    REPLACED = "replaced"  # a newer life took the place of an older one
    RANK = "rank"  # one more rank of a known life
    STATE = "state"
    RENEWED = "renewed"
    LOST = "lost"
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class Entry:
    """One rank's latest word."""

    said: Registration
    ends_s: float  # of its lease


@dataclass(slots=True)
class Life:
    """One instance from start to end."""

    epoch: int
    role: Role
    begun_s: float
    shape: Shape
    fingerprint: Fingerprint | None = None
    ranks: dict[Coords, Entry] = field(default_factory=dict)
    told_lost: bool = False

    def lease_left_s(self, now_s: float) -> float:
        """Seconds until the first of its leases runs out; negative: it did so long ago."""
        return min((entry.ends_s - now_s for entry in self.ranks.values()), default=0.0)

    def ranks_in(self) -> int:
        """How many ranks can be reached."""
        return sum(_is_whole(entry.said) for entry in self.ranks.values())

    def state(self, now_s: float) -> State:
        """Return the state of the whole: the least of its ranks' states."""
        states = {entry.said.state for entry in self.ranks.values()}
        if self.lease_left_s(now_s) <= 0:
            return State.LOST
        if self.ranks_in() < self.shape.ranks or State.STARTING in states:
            return State.STARTING
        return State.DRAINING if State.DRAINING in states else State.READY


@dataclass(slots=True)
class Registry:
    """All lives, by instance name."""

    forget_s: float = 600.0  # a lost instance is remembered for so long
    lives: dict[str, Life] = field(default_factory=dict)

    def put(self, said: Registration, now_s: float) -> Change:
        """Take in or renew one rank.

        Raises:
            Invalid: a rank outside its own shape, or a ready worker without inbox or fingerprint.
            Conflict: older than the known life, or unlike its other ranks.
            NotReady: the book is full.
        """
        _check(said)
        life = self.lives.get(said.instance)
        if life is None and len(self.lives) >= INSTANCES_LIMIT:
            raise NotReady(f"the phone book is full: {INSTANCES_LIMIT} instances")
        if life is None or said.epoch > life.epoch:
            change = Change.NEW if life is None else Change.REPLACED
            life = Life(said.epoch, said.role, now_s, said.shape)
            self.lives[said.instance] = life
        else:
            _check_same(life, said)
            change = _change(life, said, now_s)
        if said.fingerprint is not None and life.fingerprint is None:
            _settle(life, said)
        life.ranks[coords_of(said)] = Entry(said, now_s + said.lease_s)
        life.told_lost = life.told_lost and life.lease_left_s(now_s) <= 0
        return change

    def delete(self, instance: str, epoch: int, ranks: Iterable[Coords] | None) -> None:
        """Take out some ranks, or (None) all of an instance; the last one takes the life along.

        Raises:
            Unknown: no such instance or rank.
            Conflict: it is in another life.
        """
        life = self._life(instance)
        if epoch != life.epoch:
            raise Conflict(f"{instance}: epoch registered {life.epoch}, yours {epoch}")
        gone = list(life.ranks) if ranks is None else list(ranks)
        for coords in gone:
            if coords not in life.ranks:
                raise Unknown(f"{instance} has no rank {_told(coords)}")
        for coords in gone:
            life.ranks.pop(coords, None)
        if not life.ranks:
            del self.lives[instance]

    def route(self, instance: str | None, coords: Coords, now_s: float) -> RankRoute:
        """Return where one rank is; raises Unknown, NotReady, Conflict."""
        name, life = self._whole(instance, now_s)
        if coords not in life.ranks:
            raise Unknown(f"{name} has no rank {_told(coords)}; its shape is {_sizes(life.shape)}")
        said = life.ranks[coords].said
        return RankRoute(said.rank_ip, said.rank_port, name, life.epoch)

    def topology(self, instance: str | None, now_s: float) -> Topology:
        """Return what an instance is made of; raises Unknown, NotReady, Conflict."""
        name, life = self._whole(instance, now_s)
        if life.fingerprint is None:
            raise Unknown(f"{name} is a {life.role.value}: it has no topology")
        return Topology(name, life.epoch, life.shape, life.fingerprint, life.state(now_s))

    def instances(self, now_s: float, wall_s: float) -> list[InstanceInfo]:
        """Return all instances by name; ``wall_s`` is Unix time at ``now_s``."""
        return [
            _info(name, life, now_s, wall_s - now_s) for name, life in sorted(self.lives.items())
        ]

    def tick(self, now_s: float) -> list[tuple[str, Change]]:
        """Forget what was lost long ago; return whom this tick lost and forgot."""
        seen: list[tuple[str, Change]] = []
        for name, life in list(self.lives.items()):
            left_s = life.lease_left_s(now_s)
            if left_s <= -self.forget_s:
                del self.lives[name]
                seen.append((name, Change.FORGOTTEN))
            elif left_s <= 0 and not life.told_lost:
                life.told_lost = True
                seen.append((name, Change.LOST))
        return seen

    def _life(self, instance: str) -> Life:
        if instance not in self.lives:
            raise Unknown(f"no instance {instance} is registered")
        return self.lives[instance]

    def _whole(self, instance: str | None, now_s: float) -> tuple[str, Life]:
        name = self._only_prefill(now_s) if instance is None else instance
        life = self._life(name)
        left_s = life.lease_left_s(now_s)
        if left_s <= 0:
            raise NotReady(f"{name} is lost: its lease ran out {-left_s:.1f} s ago")
        if life.ranks_in() < life.shape.ranks:
            raise NotReady(f"{name}: {life.ranks_in()} of {life.shape.ranks} ranks are in")
        return name, life

    def _only_prefill(self, now_s: float) -> str:
        names = [
            name
            for name, life in sorted(self.lives.items())
            if life.role is Role.PREFILL and life.lease_left_s(now_s) > 0
        ]
        if not names:
            raise NotReady("no prefill is registered")
        if len(names) > 1:
            raise Conflict(f"several prefills, say instance=: {', '.join(names)}")
        return names[0]


def coords_of(said: Registration) -> Coords:
    """Return which rank a registration is about."""
    return Coords(said.attn_dp_rank, said.attn_cp_rank, said.attn_tp_rank, said.pp_rank)


def _is_whole(said: Registration) -> bool:
    return said.role not in WORKERS or (said.rank_port > 0 and said.fingerprint is not None)


def _check(said: Registration) -> None:
    shape = said.shape
    coords = coords_of(said)
    limits = Coords(shape.attn_dp_size, shape.attn_cp_size, shape.attn_tp_size, shape.pp_size)
    if any(at >= size for at, size in zip(coords, limits, strict=True)):
        raise Invalid(f"rank {_told(coords)} lies outside the shape {_sizes(shape)}")
    if said.role is Role.BOOTSTRAP or said.instance == BOOTSTRAP_NAME or said.state is State.LOST:
        raise Invalid(f"{said.instance}, {said.role.value}, {said.state.value}: not yours to say")
    if said.role in WORKERS and (said.rank_port > 0) != bool(said.rank_ip):
        raise Invalid(f"half an inbox: rank_ip {said.rank_ip!r}, rank_port {said.rank_port}")
    if said.role not in WORKERS and (said.fingerprint is not None or shape.ranks > 1):
        raise Invalid(f"a {said.role.value} has one rank and no fingerprint")
    if said.state is State.READY and not _is_whole(said):
        raise Invalid("a ready worker has rank_ip, rank_port and fingerprint")


def _check_same(life: Life, said: Registration) -> None:
    if said.epoch < life.epoch:
        raise Conflict(
            f"{said.instance}: epoch registered {life.epoch}, yours {said.epoch} is older"
        )
    if said.role is not life.role:
        raise Conflict(f"{said.instance}: role registered {life.role.value}, yours {said.role}")
    if life.fingerprint is None:
        return
    if said.shape != life.shape:
        raise Conflict(
            f"{said.instance}: shape registered {_sizes(life.shape)}, yours {_sizes(said.shape)}"
        )
    if said.fingerprint is not None and said.fingerprint != life.fingerprint:
        lines = "; ".join(differences(said.fingerprint, life.fingerprint))
        raise Conflict(f"{said.instance}: unlike its other ranks: {lines}")


def _change(life: Life, said: Registration, now_s: float) -> Change:
    known = life.ranks.get(coords_of(said))
    if known is None:
        return Change.RANK
    same = known.said.state is said.state and known.ends_s > now_s
    return Change.RENEWED if same else Change.STATE


def _settle(life: Life, said: Registration) -> None:
    """The first rank with a fingerprint fixes the life's shape; earlier guesses must fit it."""
    life.fingerprint = said.fingerprint
    if life.shape != said.shape:
        life.shape = said.shape
        life.ranks.clear()


def _info(name: str, life: Life, now_s: float, wall_offset_s: float) -> InstanceInfo:
    some = next(iter(life.ranks.values())).said
    return InstanceInfo(
        instance=name,
        role=life.role,
        epoch=life.epoch,
        state=life.state(now_s),
        http_host=some.http_host,
        http_port=some.http_port,
        version=some.version,
        ranks=life.ranks_in(),
        ranks_expected=life.shape.ranks,
        lease_left_s=life.lease_left_s(now_s),
        fingerprint=life.fingerprint,
        since_s=life.begun_s + wall_offset_s,
    )


def _told(coords: Coords) -> str:
    return " ".join(f"{name} {value}" for name, value in coords._asdict().items())


def _sizes(shape: Shape) -> str:
    return (
        f"dp {shape.attn_dp_size} cp {shape.attn_cp_size} "
        f"tp {shape.attn_tp_size} pp {shape.pp_size}"
    )

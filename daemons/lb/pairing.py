"""Which pair a request gets: who may, who has a place, then the policies of both roles; pure.

- Prefill is chosen first, then a decode that goes with it.
- Workers that rest (breakers), that failed this very request, or that are known to lack memory are
  chosen only when there is no other.
- ``local_prefill`` says when decode computes the prompt by itself: ``never``; ``when_alone``: no
  prefill is ready; ``threshold``: then too, and for prompts below ``local_prefill_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from daemons.lb.breaker import Breakers
from daemons.lb.config import LbConfig
from daemons.lb.credits import Credits
from daemons.lb.fleet import Candidate, Fleet, Life, Match, Pair, Pick, Wish, Worker
from daemons.lb.policies import POLICIES, Policy
from daemons.protocol.topology import Role

T = TypeVar("T")


class NoPair(Exception):
    """Nobody may serve; the text says why."""


@dataclass(slots=True)
class Pairing:
    """The choice, and what it looks at."""

    config: LbConfig
    fleet: Fleet
    credits: Credits
    breakers: Breakers
    prefill_policy: Policy
    decode_policy: Policy
    rates: dict[tuple[str, str], float] = field(default_factory=dict)  # (prefill, decode): bytes/s

    def pick(self, wish: Wish, now_s: float, avoid: Collection[Life] = ()) -> Pick | None:
        """Return a pair for a request, None when no worker has a place for it now.

        Raises:
            NoPair: nobody may serve.
        """
        pairs = self.fleet.pairs(now_s)
        if (reason := self._why_alone(wish, pairs, now_s)) is not None:
            return self._alone(wish, now_s, avoid, reason)
        if not pairs:
            raise NoPair(self.fleet.why_no_pair(now_s))
        free = self._free(wish)
        if not free:
            return None
        prefills = self._calm([match.prefill for match in free], now_s, avoid)
        prefill, why_prefill = self.prefill_policy.pick(
            [self._candidate(worker, "", now_s) for worker in prefills], wish
        )
        theirs = free[prefills.index(prefill)] if len(prefills) == len(free) else None
        if theirs is None:
            theirs = next(match for match in free if match.prefill is prefill)
        decodes = [pair.decode for pair in theirs.pairs]
        decode, why_decode = self._decode(decodes, prefill.name, wish, now_s, avoid)
        pair = theirs.pairs[decodes.index(decode)]
        return Pick(pair, f"{prefill.name} {why_prefill}; {decode.name} {why_decode}")

    def _free(self, wish: Wish) -> Sequence[Match]:
        """Return the pairs in which both have a place; each worker is looked at once."""
        fleet = self.fleet
        if not self._is_near_full(wish):
            return fleet.matches
        full = {worker.life for worker in fleet.partners if not self._has_place(worker, wish)}
        free = [match for match in fleet.matches if self._has_place(match.prefill, wish)]
        if not full:
            return free
        left = [
            Match(one.prefill, [pair for pair in one.pairs if pair.decode.life not in full])
            for one in free
        ]
        return [match for match in left if match.pairs]

    def keep(self, lives: set[Life]) -> None:
        """Forget all other lives."""
        self.credits.keep(lives)
        self.breakers.keep(lives)
        names = {name for name, _ in lives}
        self.rates = {pair: rate for pair, rate in self.rates.items() if names.issuperset(pair)}

    def offers_others(self, now_s: float, avoid: Collection[Life]) -> bool:
        """Say whether a pair may serve in which nobody is to be avoided."""
        return any(
            all(worker.life not in avoid for worker in pair.workers)
            for pair in self.fleet.pairs(now_s)
        )

    def _why_alone(self, wish: Wish, pairs: Sequence[Pair], now_s: float) -> str | None:
        """Return why decode shall compute the prompt, None when it shall not."""
        how, limit = self.config.local_prefill, self.config.local_prefill_tokens
        if how == "never" or not self.fleet.lone_decodes(now_s):
            return None
        if how == "threshold" and wish.rooms and wish.prompt_tokens < limit:
            return f"prompt below {limit} tokens"
        if not pairs and not self.fleet.has_pickable(Role.PREFILL):
            return "no prefill is ready"
        return None

    def _alone(self, wish: Wish, now_s: float, avoid: Collection[Life], reason: str) -> Pick | None:
        decodes = [w for w in self.fleet.lone_decodes(now_s) if self._has_place(w, wish)]
        if not decodes:
            return None
        decode, why = self._decode(decodes, "", wish, now_s, avoid)
        return Pick(Pair(None, decode), f"local prefill, {reason}; {decode.name} {why}")

    def _decode(
        self,
        decodes: Sequence[Worker],
        prefill: str,
        wish: Wish,
        now_s: float,
        avoid: Collection[Life],
    ) -> tuple[Worker, str]:
        calm = self._calm(decodes, now_s, avoid)
        enough = calm
        if self.credits.heard:
            enough = _rather(calm, lambda w: not self.credits.lacks(w.life, wish.tokens, now_s))
        candidates = [self._candidate(worker, prefill, now_s) for worker in enough]
        return self.decode_policy.pick(candidates, wish)

    def _calm(
        self, workers: Sequence[Worker], now_s: float, avoid: Collection[Life]
    ) -> Sequence[Worker]:
        closed = workers
        if self.breakers.accounts:
            closed = _rather(workers, lambda one: self.breakers.lets(one.life, now_s))
        return _rather(closed, lambda one: one.life not in avoid) if avoid else closed

    def _candidate(self, worker: Worker, prefill: str, now_s: float) -> Candidate:
        life = worker.life
        return Candidate(
            worker,
            self.fleet.rooms.get(life, 0),
            self.fleet.tokens.get(life, 0),
            self.credits.free(life, now_s) if self.credits.heard else None,
            self.rates.get((prefill, worker.name), 0.0) if self.rates else 0.0,
        )

    def _is_near_full(self, wish: Wish) -> bool:
        """Say whether anybody may lack a place."""
        config = self.config
        limit = min(config.max_rooms_per_prefill, config.max_rooms_per_decode)
        return max(self.fleet.rooms.values(), default=0) + wish.rooms > limit

    def _has_place(self, worker: Worker, wish: Wish) -> bool:
        """Say whether a worker may get so many rooms more; one without any may get any number."""
        config = self.config
        is_prefill = worker.role is Role.PREFILL
        limit = config.max_rooms_per_prefill if is_prefill else config.max_rooms_per_decode
        there = self.fleet.rooms.get(worker.life, 0)
        return there == 0 or there + wish.rooms <= limit


def pairing_of(config: LbConfig, fleet: Fleet, random: Random) -> Pairing:
    """Return the choice that a configuration describes; its policies must be known."""
    breakers = Breakers(config.breaker_failures, config.breaker_rest_s)
    prefill, decode = POLICIES[config.prefill_policy], POLICIES[config.decode_policy]
    return Pairing(config, fleet, Credits(), breakers, prefill(random), decode(random))


def _rather(some: Sequence[T], test: Callable[[T], bool]) -> Sequence[T]:
    """Return those that pass, or all when none does."""
    return [one for one in some if test(one)] or some

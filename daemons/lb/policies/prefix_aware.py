"""The worker that has seen the longest beginning of this prompt, unless it is far too busy.

What a worker has seen is a guess from what it was sent: it may have dropped it since. The prompt is
compared as bytes, in blocks; each block is known by all that comes before it too, so that a set
of blocks is a tree of prefixes. The oldest blocks are forgotten.
Source of the idea and of the limits of imbalance: SGLang's router, ``cache_aware``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.lb.fleet import Candidate, Wish
from daemons.lb.policies.choice import Choice
from daemons.lb.policies.turns import Turns

BLOCK_BYTES = 128
LOOKED_AT_BYTES = 64 << 10  # of a prompt; further on even a miss is cheap beside the rest
BLOCKS_LIMIT = 1 << 17  # remembered, over all workers
WORTH = 0.1  # of the prompt: less is not worth an uneven load
IMBALANCE_ROOMS = 16  # from the least loaded worker to the one with the prefix
IMBALANCE = 1.5  # times as many


@dataclass(slots=True)
class PrefixAware:
    """Who saw which block, the latest used last."""

    blocks_limit: int = BLOCKS_LIMIT
    _seen: OrderedDict[int, dict[str, int]] = field(default_factory=OrderedDict)  # name: epoch
    _turns: Turns = field(default_factory=Turns)

    def pick(self, candidates: Sequence[Candidate], wish: Wish) -> Choice:
        """Return a worker, and remember that it sees this prompt."""
        blocks = _blocks(wish.prompt)
        chosen, because = self._chosen(candidates, blocks)
        self._learn(blocks, chosen)
        return Choice(chosen.worker, because)

    def _chosen(
        self, candidates: Sequence[Candidate], blocks: Sequence[int]
    ) -> tuple[Candidate, str]:
        matched = {one.worker.name: self._matched(blocks, one) for one in candidates}
        most = max(matched.values())
        if most and most >= WORTH * len(blocks):
            holders = [one for one in candidates if matched[one.worker.name] == most]
            chosen = self._turns.least(holders, lambda one: one.rooms)
            if not _is_far_busier(chosen, candidates):
                return chosen, f"has seen {most / len(blocks):.0%} of the prompt"
            because = f"{chosen.worker.name} has the prefix but {chosen.rooms} rooms; least rooms"
        else:
            because = "prefix not seen; least rooms"
        chosen = self._turns.least(candidates, lambda one: one.rooms)
        return chosen, f"{because}: {chosen.rooms}"

    def _matched(self, blocks: Sequence[int], one: Candidate) -> int:
        """Return how many first blocks a worker has seen in this life."""
        name, epoch = one.worker.life
        for count, block in enumerate(blocks):
            if self._seen.get(block, {}).get(name) != epoch:
                return count
        return len(blocks)

    def _learn(self, blocks: Sequence[int], one: Candidate) -> None:
        name, epoch = one.worker.life
        for block in reversed(blocks):  # so that the beginning is the last to be forgotten
            self._seen.setdefault(block, {})[name] = epoch
            self._seen.move_to_end(block)
        while len(self._seen) > self.blocks_limit:
            self._seen.popitem(last=False)


def _blocks(prompt: bytes) -> list[int]:
    """Return a number for each whole block of a prompt and all before it."""
    numbers: list[int] = []
    before = 0
    for at in range(0, min(len(prompt), LOOKED_AT_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        before = hash((before, prompt[at : at + BLOCK_BYTES]))
        numbers.append(before)
    return numbers


def _is_far_busier(chosen: Candidate, candidates: Sequence[Candidate]) -> bool:
    least = min(one.rooms for one in candidates)
    return chosen.rooms > least + IMBALANCE_ROOMS and chosen.rooms > least * IMBALANCE

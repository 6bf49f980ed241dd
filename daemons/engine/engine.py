"""One rank's model, KV pool and sampler, behind a few blocking verbs.

One thread calls ``begin``, ``forward`` and ``end``, in order; nothing here is locked.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from pathlib import Path

from daemons.engine.config import EngineConfig
from daemons.engine.step import Item, Result, Sequence
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import RoomKey
from daemons.protocol.topology import Fingerprint


class Engine:
    """A model that is loaded, with its KV pool.

    Attributes:
        fingerprint: what a peer must have too before pages may be exchanged.
        pages: pages of the pool, numbered from 0; all of them belong to the caller.
        page_size: tokens per page.
        vocab_size: token ids are below it.
        max_model_len: the longest prompt + output, in tokens.
        eos_token_ids: tokens with which this model ends a text.
    """

    fingerprint: Fingerprint
    pages: int
    page_size: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    @staticmethod
    def load(config: EngineConfig, model_dir: Path, *, kv_tokens: int | None = None) -> Engine:
        """Read a model and reserve its KV pool; ``kv_tokens`` goes before the configuration's.

        Raises:
            OperatorError: no such device, an architecture that is not served, broken weights.
        """
        raise NotImplementedError

    def kv_regions(self) -> tuple[KvRegion, ...]:
        """Return where the pages lie, by (layer, kind, head) in memory order."""
        raise NotImplementedError

    def kv_memory(self) -> tuple[int, int]:
        """Return the address and the bytes of the whole pool, one piece of memory."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Run every kind of forward once, on pages that are then zeroed again."""
        raise NotImplementedError

    def begin(self, sequence: Sequence) -> None:
        """Make a room known, with what was asked and what was already said."""
        raise NotImplementedError

    def end(self, key: RoomKey) -> None:
        """Forget a room; harmless when it is not known."""
        raise NotImplementedError

    def forward(self, items: Several[Item]) -> list[Result]:
        """Run one batch, prefill chunks and decode steps together; results in order of items."""
        raise NotImplementedError

"""The proof that a rank's session can be written to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest

from daemons.rank.canary import CanaryDied, sing
from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import Copy, PeerGone, Region
from daemons.transfer.loopback import Loopback


def registered() -> tuple[Loopback, RowMemory]:
    backend, rows = Loopback(), RowMemory(1)
    backend.register([Region(rows.address, rows.bytes)])
    return backend, rows


def test_a_song_that_arrives_leaves_the_row_empty() -> None:
    backend, rows = registered()
    sing(backend, rows)
    assert rows.read(0) == bytes(rows.bytes)
    backend.close()


def test_a_session_that_nobody_answers_is_named() -> None:
    backend, rows = registered()

    class Silent:
        session = "nobody:1"
        transport = "none"

        def register(self, regions: Sequence[Region]) -> None: ...

        def write(self, peer: str, copies: Sequence[Copy]) -> None:
            raise PeerGone("refused")

        def close(self) -> None: ...

    with pytest.raises(CanaryDied, match="nobody:1 cannot be written to"):
        sing(Silent(), rows)
    assert rows.read(0) == bytes(rows.bytes)
    backend.close()


def test_other_bytes_than_were_sent_are_noticed() -> None:
    backend, rows = registered()

    class Garbling:
        session = "garbling"
        transport = "none"

        def register(self, regions: Sequence[Region]) -> None: ...

        def write(self, peer: str, copies: Sequence[Copy]) -> None:
            for copy in copies:
                ctypes.memset(copy.target, 0, copy.bytes)

        def close(self) -> None: ...

    with pytest.raises(CanaryDied, match="not what arrived"):
        sing(Garbling(), rows)
    backend.close()

"""Before a rank says that it can serve, a few bytes go the way that rooms will go.

The forward has been proven by the engine's warm-up. Here the backend writes from registered memory
of ours to its own session, as to a peer's, and the bytes are looked at: the session that peers will
be told is one that can be written to.
"""

from __future__ import annotations

import ctypes
import secrets

from daemons.runtime.row_memory import RowMemory
from daemons.transfer.backend import BadCopy, Copy, PeerGone, TransferBackend, WriteCut

SONG_BYTES = 512  # half of what fits twice into one metadata row


class CanaryDied(Exception):
    """Bytes did not arrive, or not as they were sent."""


def sing(backend: TransferBackend, rows: RowMemory) -> None:
    """Write from the first half of row 0 to the second, and leave it empty.

    Raises:
        CanaryDied: with what happened.
    """
    song = secrets.token_bytes(SONG_BYTES)
    target = rows.address + SONG_BYTES
    try:
        ctypes.memmove(rows.address, song, SONG_BYTES)
        backend.write(backend.session, [Copy(rows.address, target, SONG_BYTES)])
        heard = ctypes.string_at(target, SONG_BYTES)
    except (PeerGone, WriteCut, BadCopy) as error:
        raise CanaryDied(
            f"{backend.session} cannot be written to from here: {type(error).__name__}: {error}"
        ) from error
    finally:
        rows.zero(0)
    if heard != song:
        raise CanaryDied(f"bytes written to {backend.session} are not what arrived")

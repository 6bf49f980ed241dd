"""What the decode core asks its shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from daemons.engine.step import Begin, End, Keep, Prepare, Restore, Run
from daemons.kv.stretch import Stretch
from daemons.protocol.generate import LookUp
from daemons.protocol.ids import RoomKey
from daemons.protocol.metadata import ChunkSum
from daemons.runtime.commands import (
    Connect,
    Disconnect,
    Log,
    Probe,
    Send,
    SendHeartbeat,
    Tell,
)


@dataclass(frozen=True, slots=True)
class ZeroRow:
    """Empty a row before it is offered to a writer."""

    row: int


@dataclass(frozen=True, slots=True)
class ReadRow:
    """Look at the row of a room; answered by RowRead."""

    key: RoomKey
    row: int


@dataclass(frozen=True, slots=True)
class VerifySums:
    """Compare pages that have landed with prefill's sums; answered by SumsVerified."""

    key: RoomKey
    offered: Stretch  # where they are
    sums: tuple[ChunkSum, ...]
    tokens: int  # of the prompt


Command = (
    Connect
    | Disconnect
    | Send
    | SendHeartbeat
    | Probe
    | Tell
    | Log
    | LookUp
    | Prepare
    | Begin
    | Run
    | End
    | Keep
    | Restore
    | ZeroRow
    | ReadRow
    | VerifySums
)

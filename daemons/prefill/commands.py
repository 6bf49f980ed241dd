"""What the prefill core asks its shell to do."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from daemons.engine.step import Begin, End, Prepare, Run
from daemons.kv.stretch import Stretch
from daemons.protocol.handshake import RegisterBuffers
from daemons.protocol.ids import PeerId, RoomKey
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
class LearnBuffers:
    """A decode has registered: remember where its regions are, until it is disconnected."""

    peer: PeerId
    buffers: RegisterBuffers


@dataclass(frozen=True, slots=True)
class WriteKV:
    """Write pages, then (with the last ones) the row; answered by exactly one Write… event.

    The writes of one room are carried out in the order in which they are commanded. One that
    follows a forward sends layers as they are done; it is skipped when the forward breaks.
    """

    key: RoomKey
    peer: PeerId
    source_pages: tuple[int, ...]
    target_pages: tuple[int, ...]  # as many, at decode
    row: bytes | None = None  # the last write has it
    source_row: int = 0
    target_row: int = 0
    first: int = 0  # the text page that lies in the first of the pages
    source_window: tuple[int, ...] = ()  # window pages, of layers that have their own
    target_window: tuple[int, ...] = ()  # as many, at decode
    window_first: int = 0  # the text page that lies in the first of them
    by_s: float = inf  # when the client stops waiting; of several rooms the earliest goes first
    prompt_tokens: int = 0  # layers with a window send only what is seen from behind so many
    step: int = 0  # the forward that computes the pages; 0: they are computed

    @property
    def source(self) -> Stretch:
        """What is written, here."""
        return Stretch(self.first, self.source_pages, self.window_first, self.source_window)

    @property
    def target(self) -> Stretch:
        """Where it goes."""
        return Stretch(self.first, self.target_pages, self.window_first, self.target_window)


@dataclass(frozen=True, slots=True)
class CallOffWrites:
    """Skip the writes of a room that the lane has not begun."""

    key: RoomKey


Command = (
    Connect
    | Disconnect
    | Send
    | SendHeartbeat
    | Probe
    | Tell
    | Log
    | Prepare
    | Begin
    | Run
    | End
    | LearnBuffers
    | WriteKV
    | CallOffWrites
)

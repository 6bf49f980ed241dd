"""Both cores with small pools, and the events and commands that scripts about them speak of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from daemons.cluster.worker import Timers
from daemons.decode.config import DecodeConfig
from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.engine.config import EngineConfig
from daemons.engine.step import Result, StepDone
from daemons.kv.window import Windows
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.config import PrefillConfig
from daemons.prefill.decodes import Decodes
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import (
    Grammar,
    GrammarKind,
    Output,
    RouteFound,
    Sampling,
    Submit,
    TokenOut,
    prompt_digest,
)
from daemons.protocol.handshake import (
    Abort,
    Destination,
    Fence,
    KvRegion,
    Message,
    Progress,
    RegisterBuffers,
    RegistrationAnswer,
)
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.status import Status
from daemons.protocol.topology import Fingerprint
from daemons.runtime.commands import Send, Tell
from daemons.runtime.events import MessageCame, Submitted
from daemons.transfer.config import TransferConfig

P, P_NEXT = PeerId("p0", 100), PeerId("p0", 101)
D, D_NEXT, D_OTHER = PeerId("d0", 200), PeerId("d0", 201), PeerId("d1", 300)
PAGE_SIZE = 4
FINGERPRINT = Fingerprint("m", "fp32", PAGE_SIZE, 1, 1, 8)
REGIONS = (KvRegion(4096, 128, 0, 0, 0), KvRegion(8192, 128, 0, 1, 0))
TIMERS = Timers(
    handshake_s=10,
    queue_s=20,
    destination_s=15,
    progress_s=12,
    heartbeat_s=1,
    peer_timeout_s=5,
    settle_s=2,
    tombstone_s=100,
)
PLAIN: dict[str, Any] = {"rows": 4, "timers": TIMERS, "prefix_cache": False}
GUIDED = Sampling(max_tokens=3, eos_token_ids=(999,), grammar=Grammar(GrammarKind.JSON))
CANCELLED = Failure(Cause.CLIENT_CANCELLED, "client")

Kind = TypeVar("Kind")


def window_pool(pages: int, window: int = 6) -> WindowPool:
    """Window pages for the second of two layers."""
    return WindowPool(Windows(PAGE_SIZE, (None, window)), pages)


def prefill_core(
    *,
    pages: int = 8,
    engine: EngineConfig | None = None,
    window: WindowPool = NO_POOL,
    **more: Any,
) -> PrefillCore:
    """A prefill that computes up to 8 tokens at once, 4 of them of one room.

    Where nothing else is said pages leave when their chunk is computed.
    """
    engine = engine or EngineConfig(page_size=PAGE_SIZE, chunk_tokens=4, batch_tokens=8)
    chunks = {"transfer": TransferConfig(grain="chunk")}
    settings: dict[str, Any] = PLAIN | {"engine": engine} | chunks | more
    decodes = Decodes(FINGERPRINT, REGIONS, window=window)
    return PrefillCore(P, PrefillConfig(**settings), decodes, pages)


def decode_core(*, pages: int = 8, window: WindowPool = NO_POOL, **more: Any) -> DecodeCore:
    """A decode with a small pool and, where nothing else is said, one step after the other."""
    engine = EngineConfig(page_size=PAGE_SIZE, steps_ahead=0)
    settings: dict[str, Any] = PLAIN | {"engine": engine} | more
    return DecodeCore(D, DecodeConfig(**settings), buffers(D), pages, window)


def buffers(sender: PeerId, **changes: Any) -> RegisterBuffers:
    """The memory of a decode."""
    plain = RegisterBuffers(
        sender,
        P.epoch,
        "d.host",
        9000,
        "session",
        FINGERPRINT,
        64,
        REGIONS,
        1 << 20,
        ROW_BYTES,
        16,
    )
    return msgspec.structs.replace(plain, **changes)


def submit(room: int = 1, tokens: int = 6, most: int = 3, **changes: Any) -> Submit:
    """A request; the prompt is 1, 2, 3, …"""
    sampling = changes.pop("sampling", Sampling(max_tokens=most, eos_token_ids=(999,)))
    plain = Submit(room, 1, tuple(range(1, tokens + 1)), sampling, "p0", 600.0)
    return msgspec.structs.replace(plain, **changes)


def submitted(room: int = 1, tokens: int = 6, most: int = 3, **changes: Any) -> Submitted:
    """The event of a request."""
    return Submitted(submit(room, tokens, most, **changes))


def destination(room: int = 1, tokens: int = 6, **changes: Any) -> Destination:
    """Where a decode wants a room: pages from 10 on, row 3."""
    pages = tuple(range(10, 10 + -(-tokens // PAGE_SIZE)))
    digest = prompt_digest(range(1, tokens + 1))
    plain = Destination(D, P.epoch, room, 1, pages, 3, tokens, digest)
    return msgspec.structs.replace(plain, **changes)


def abort(room: int = 1, sender: PeerId = D, failure: Failure = CANCELLED) -> Abort:
    """A decode gives a room up."""
    return Abort(sender, P.epoch, room, 1, failure)


def progress(
    status: Status,
    room: int = 1,
    sender: PeerId = P,
    failure: Failure | None = None,
    fence: Fence = Fence.CLEAN,
    sent_bytes: int = 0,
) -> Progress:
    """A prefill tells how far it is."""
    return Progress(sender, D.epoch, room, 1, status, sent_bytes, failure, fence)


def came(message: Message) -> MessageCame:
    """The event of a message."""
    return MessageCame(message)


def route(peer: PeerId = P, **changes: Any) -> RouteFound:
    """The phone book's answer."""
    plain = RouteFound(peer.instance, peer.rank, peer.epoch, "p.host", 8000, FINGERPRINT)
    return msgspec.structs.replace(plain, **changes)


def answer(sender: PeerId = P, refused: str = "") -> RegistrationAnswer:
    """A prefill takes, or refuses, our buffers."""
    return RegistrationAnswer(sender, D.epoch, refused)


def done(*rooms: int, token: int = 7, error: str = "") -> StepDone:
    """A forward in which each room chose ``token``; 0: it was no room's turn to choose."""
    out = TokenOut(token) if token and not error else None
    return StepDone(tuple(Result(key(room), out, error=error) for room in rooms))


def key(room: int = 1) -> RoomKey:
    """The first attempt at a room."""
    return RoomKey(room, 1)


def of(commands: Iterable[object], kind: type[Kind]) -> list[Kind]:
    """Return the commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def said(commands: Iterable[object], kind: type[Kind]) -> list[Kind]:
    """Return the messages of one kind that were sent."""
    return [send.message for send in of(commands, Send) if isinstance(send.message, kind)]


def told(commands: Iterable[object]) -> list[Output]:
    """Return what the front was told."""
    return [output for tell in of(commands, Tell) for output in tell.outputs]


def causes(commands: Iterable[object]) -> list[Cause]:
    """Return the causes that the front was told."""
    return [output.failure.cause for output in told(commands) if output.failure]


def is_idle(core: DecodeCore | PrefillCore) -> bool:
    """Nothing is left of any room."""
    core.pages.check()
    core.rows.check()
    everything_free = core.pages.free == core.pages.size and core.rows.free == core.rows.size
    return everything_free and not core.busy and not sum(core.recorder.counts().values())

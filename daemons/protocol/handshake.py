"""What decode and prefill ranks tell each other on the message plane (ZMQ).

Every message names its sender (instance, epoch, rank) and the life it is meant for (``to_epoch``):
a process never obeys a message for an earlier life of itself. Decode says where to write;
prefill says how far it is; an abort is always answered, even for a room nobody knows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from daemons.protocol.causes import Failure
from daemons.protocol.ids import Attempt, Epoch, PeerId, Port, Room
from daemons.protocol.status import Status
from daemons.protocol.topology import Fingerprint

PAGES_LIMIT = 1 << 20
REGIONS_LIMIT = 1 << 16

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
Address = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
ByteCount = Annotated[int, msgspec.Meta(gt=0, lt=2**50)]
PageIndex = Annotated[int, msgspec.Meta(ge=0, lt=PAGES_LIMIT)]
UnixSeconds = Annotated[float, msgspec.Meta(ge=0, lt=2**53)]
RowIndex = Annotated[int, msgspec.Meta(ge=0, lt=PAGES_LIMIT)]


class Fence(StrEnum):
    """What a writer knows about its own writes for a room that has ended."""

    CLEAN = "clean"  # every write was acknowledged by the receiver's engine, or none began
    CUT = "cut"  # the connection was destroyed under a write: bytes in sockets may still land


class KvRegion(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one head of one layer: page ``p`` starts at ``address + p * page_bytes``."""

    address: Address
    page_bytes: ByteCount
    layer: Annotated[int, msgspec.Meta(ge=0)]
    kind: Annotated[int, msgspec.Meta(ge=0, le=1)]  # 0 key, 1 value
    head: Annotated[int, msgspec.Meta(ge=0)]  # of the whole model, not of the rank


class RegisterBuffers(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Decode to prefill, once per peer and life: all memory that may be written."""

    sender: PeerId
    to_epoch: Epoch
    reply_host: str
    reply_port: Port
    session: str  # what the transfer backend calls the decode process
    fingerprint: Fingerprint
    pages: Annotated[int, msgspec.Meta(gt=0, le=PAGES_LIMIT)]
    regions: Annotated[tuple[KvRegion, ...], msgspec.Meta(min_length=1, max_length=REGIONS_LIMIT)]
    rows_address: Address
    row_bytes: ByteCount
    rows: Annotated[int, msgspec.Meta(gt=0, le=PAGES_LIMIT)]
    window_pages: Annotated[int, msgspec.Meta(ge=0, le=PAGES_LIMIT)] = 0  # of layers with a window


class RegistrationAnswer(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Prefill to decode: buffers known, or refused with a reason that shows both values."""

    sender: PeerId
    to_epoch: Epoch
    refused: str = ""  # "": accepted


class Destination(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Decode to prefill, once per room: where this room's pages and row go."""

    sender: PeerId
    to_epoch: Epoch
    room: Room
    attempt: Attempt
    pages: Annotated[tuple[PageIndex, ...], msgspec.Meta(max_length=PAGES_LIMIT)]
    row: RowIndex
    prompt_tokens: Annotated[int, msgspec.Meta(gt=0)]
    prompt_digest: Digest  # both legs must mean the same words
    prefix_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0  # whole pages that decode already has
    # of layers with a window: for the text pages from the first that a coming token sees
    window_pages: Annotated[tuple[PageIndex, ...], msgspec.Meta(max_length=PAGES_LIMIT)] = ()


class Progress(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Prefill to decode: how far a room is. FAILED is said only when we can no longer write."""

    sender: PeerId
    to_epoch: Epoch
    room: Room
    attempt: Attempt
    status: Status
    sent_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    failure: Failure | None = None
    fence: Fence = Fence.CLEAN


class Abort(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Decode to prefill: the room is over here; repeated until it is answered."""

    sender: PeerId
    to_epoch: Epoch
    room: Room
    attempt: Attempt
    failure: Failure


class AbortAnswer(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Prefill to decode: nothing of ours writes for this room any more, nor ever will."""

    sender: PeerId
    to_epoch: Epoch
    room: Room
    attempt: Attempt
    fence: Fence


class Heartbeat(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Both ways, about once a second: alive, and the pair of clocks for joining stories."""

    sender: PeerId
    to_epoch: Epoch
    sent_at_s: UnixSeconds  # sender's wall clock
    echo_sent_at_s: UnixSeconds = 0.0  # the peer's last sent_at_s that we saw; 0: none


Message = (
    RegisterBuffers | RegistrationAnswer | Destination | Progress | Abort | AbortAnswer | Heartbeat
)

"""Why something ended: one closed list, shared by logs, metrics, stories and clients' errors.

A cause is ``where.what``. The first cause of a room wins and travels to both legs and the client.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """Every way a room can end that is not success."""

    CLIENT_DISCONNECTED = "client.disconnected"
    CLIENT_CANCELLED = "client.cancelled"
    CLIENT_LIMITED = "client.limited"
    REQUEST_INVALID = "request.invalid"
    REQUEST_TOO_LONG = "request.too_long"
    REQUEST_DUPLICATE = "request.duplicate_room"
    REQUEST_UNAUTHORIZED = "request.unauthorized"
    LB_NO_PAIR = "lb.no_pair"
    LB_TWIN_FAILED = "lb.twin_failed"
    LB_WORKER_GONE = "lb.worker_gone"
    LB_TIMEOUT = "lb.timeout"
    LB_KEY_MISMATCH = "lb.key_mismatch"
    BOOTSTRAP_UNREACHABLE = "bootstrap.unreachable"
    BOOTSTRAP_UNKNOWN = "bootstrap.unknown_instance"
    HANDSHAKE_TIMEOUT = "handshake.timeout"
    HANDSHAKE_REFUSED = "handshake.refused"
    PAIR_MISMATCH = "pair.mismatch"
    QUEUE_TIMEOUT = "queue.timeout"
    QUEUE_FULL = "queue.full"
    PROGRESS_TIMEOUT = "progress.timeout"
    TOTAL_TIMEOUT = "total.timeout"
    PEER_DIED = "peer.died"
    PEER_UNREACHABLE = "peer.unreachable"
    PEER_ABORTED = "peer.aborted"
    PEER_NEVER_CAME = "peer.never_came"
    TRANSFER_FAILED = "transfer.failed"
    TRANSFER_BAD_ROW = "transfer.bad_row"
    TRANSFER_CHECKSUM = "transfer.checksum"
    ENGINE_FAILED = "engine.failed"
    INSTANCE_STARTING = "instance.starting"
    INSTANCE_DRAINING = "instance.draining"
    INSTANCE_STOPPING = "instance.stopping"
    INTERNAL = "internal.error"


RETRY_IS_SENSIBLE = frozenset(
    {
        Cause.CLIENT_LIMITED,
        Cause.LB_NO_PAIR,
        Cause.LB_TWIN_FAILED,
        Cause.LB_WORKER_GONE,
        Cause.BOOTSTRAP_UNREACHABLE,
        Cause.BOOTSTRAP_UNKNOWN,
        Cause.HANDSHAKE_TIMEOUT,
        Cause.QUEUE_TIMEOUT,
        Cause.QUEUE_FULL,
        Cause.PROGRESS_TIMEOUT,
        Cause.PEER_DIED,
        Cause.PEER_UNREACHABLE,
        Cause.PEER_NEVER_CAME,
        Cause.TRANSFER_FAILED,
        Cause.TRANSFER_BAD_ROW,
        Cause.TRANSFER_CHECKSUM,
        Cause.INSTANCE_STARTING,
        Cause.INSTANCE_DRAINING,
        Cause.INSTANCE_STOPPING,
    }
)

HTTP_STATUS = {
    Cause.CLIENT_DISCONNECTED: 499,
    Cause.CLIENT_CANCELLED: 499,
    Cause.CLIENT_LIMITED: 429,
    Cause.REQUEST_INVALID: 400,
    Cause.REQUEST_TOO_LONG: 400,
    Cause.REQUEST_DUPLICATE: 409,
    Cause.REQUEST_UNAUTHORIZED: 401,
    Cause.LB_NO_PAIR: 503,
    Cause.LB_WORKER_GONE: 502,
    Cause.LB_TWIN_FAILED: 502,
    Cause.LB_TIMEOUT: 504,
    Cause.LB_KEY_MISMATCH: 502,
    Cause.BOOTSTRAP_UNREACHABLE: 503,
    Cause.BOOTSTRAP_UNKNOWN: 503,
    Cause.HANDSHAKE_TIMEOUT: 504,
    Cause.HANDSHAKE_REFUSED: 502,
    Cause.PAIR_MISMATCH: 502,
    Cause.QUEUE_TIMEOUT: 503,
    Cause.QUEUE_FULL: 503,
    Cause.PROGRESS_TIMEOUT: 504,
    Cause.TOTAL_TIMEOUT: 504,
    Cause.PEER_DIED: 502,
    Cause.PEER_UNREACHABLE: 502,
    Cause.PEER_ABORTED: 502,
    Cause.PEER_NEVER_CAME: 504,
    Cause.TRANSFER_FAILED: 502,
    Cause.TRANSFER_BAD_ROW: 502,
    Cause.TRANSFER_CHECKSUM: 502,
    Cause.ENGINE_FAILED: 500,
    Cause.INSTANCE_STARTING: 503,
    Cause.INSTANCE_DRAINING: 503,
    Cause.INSTANCE_STOPPING: 503,
    Cause.INTERNAL: 500,
}


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first cause of an end: what, in which stage, because of whom, in words."""

    cause: Cause
    stage: str
    peer: str = ""  # the instance to look at; "" when none is to blame
    detail: str = ""

    @property
    def retry_is_sensible(self) -> bool:
        """Whether the same request may succeed on another try."""
        return self.cause in RETRY_IS_SENSIBLE

    @property
    def http_status(self) -> int:
        """The status of the HTTP answer that carries this failure."""
        return HTTP_STATUS[self.cause]

    def __str__(self) -> str:
        peer = f" ({self.peer})" if self.peer else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.cause.value} in {self.stage}{peer}{detail}"

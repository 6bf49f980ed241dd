"""One example of everything that crosses a wire, and the bytes that it must become.

The bytes lie in ``golden/<name>.hex``. Other bytes for the same message are another protocol
version: raise ``PROTOCOL_VERSION`` and write them anew with ``python -m tests.wire.examples``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.chaos import Fault, FaultOrder
from daemons.protocol.codec import (
    decode,
    decode_to_front,
    decode_to_rank,
    encode,
    encode_link,
)
from daemons.protocol.generate import (
    Ask,
    AskFor,
    Cancel,
    Chaos,
    Distribution,
    Drain,
    Finish,
    FinishReason,
    Grammar,
    GrammarKind,
    LastWords,
    LookUp,
    Output,
    Outputs,
    RankReady,
    RouteFailed,
    RouteFound,
    Sampling,
    Snapshot,
    Stop,
    Submit,
    TokenOut,
)
from daemons.protocol.handshake import (
    Abort,
    AbortAnswer,
    Destination,
    Fence,
    Heartbeat,
    KvRegion,
    Progress,
    RegisterBuffers,
    RegistrationAnswer,
)
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES, Row, pack
from daemons.protocol.seal import Sealer
from daemons.protocol.status import Status
from daemons.protocol.topology import Fingerprint, Shape

GOLDEN = Path(__file__).parent / "golden"

PREFILL, DECODE = PeerId("p0", 1_700_000_000_001), PeerId("d0", 1_700_000_000_002, 1)
ROOM, ATTEMPT = 2**53 - 1, 2
FINGERPRINT = Fingerprint("sha256:0123", "bf16", 16, 2, 3, 64)
FAILURE = Failure(Cause.TRANSFER_FAILED, "inflight", "d0", "cut: no progress")

PLANE = {
    "register_buffers": RegisterBuffers(
        DECODE,
        PREFILL.epoch,
        "10.0.0.2",
        40001,
        "10.0.0.2:15000",
        FINGERPRINT,
        1024,
        (KvRegion(2**47, 6144, 0, 0, 0), KvRegion(2**47 + 2**24, 6144, 1, 1, 2)),
        2**46,
        ROW_BYTES,
        128,
        96,
    ),
    "registration_answer": RegistrationAnswer(PREFILL, DECODE.epoch, "page_size: ours 16"),
    "destination": Destination(
        DECODE,
        PREFILL.epoch,
        ROOM,
        ATTEMPT,
        (7, 8, 1023),
        127,
        40,
        "00112233445566ff",
        16,
        (95, 3),
    ),
    "progress": Progress(
        PREFILL, DECODE.epoch, ROOM, ATTEMPT, Status.FAILED, 12288, FAILURE, Fence.CUT
    ),
    "abort": Abort(DECODE, PREFILL.epoch, ROOM, ATTEMPT, FAILURE),
    "abort_answer": AbortAnswer(PREFILL, DECODE.epoch, ROOM, ATTEMPT, Fence.CLEAN),
    "heartbeat": Heartbeat(PREFILL, DECODE.epoch, 1_700_000_000.25, 1_700_000_000.125),
}
TO_RANK = {
    "submit": Submit(
        ROOM,
        ATTEMPT,
        (1, 49151),
        Sampling(
            max_tokens=5,
            temperature=0.5,
            stop_token_ids=(2,),
            logprobs=3,
            logprobs_of=Distribution.SAMPLED,
            logit_bias=((9, -100.0), (4, 0.5)),
            grammar=Grammar(GrammarKind.REGEX, "[0-9]+"),
        ),
        "p0",
        30.0,
        "r-1",
        cache_salt="s",
    ),
    "cancel": Cancel(ROOM, ATTEMPT, FAILURE),
    "finish": Finish(ROOM, ATTEMPT),
    "ask": Ask(9, AskFor.STORY, ROOM),
    "drain": Drain(on=True),
    "chaos": Chaos(9, FaultOrder(Fault.WRITE_FREEZE, 2, ROOM, seconds=0.5)),
    "stop": Stop(),
    "route_found": RouteFound("p0", 0, PREFILL.epoch, "::1", 40000, FINGERPRINT),
    "route_failed": RouteFailed("p0", FAILURE),
}
TO_FRONT = {
    "outputs": Outputs(
        (
            Output(
                ROOM,
                ATTEMPT,
                (TokenOut(9, -0.5, ((9, -0.5), (4, -1.25))),),
                FinishReason.STOP,
                9,
                cached_tokens=16,
                prompt_logprobs=(TokenOut(1), TokenOut(2, -3.0)),
            ),
            Output(1, 1, failure=FAILURE),
        )
    ),
    "look_up": LookUp("p0"),
    "last_words": LastWords("KeyError: 7"),
    "rank_ready": RankReady(
        0, 40000, "10.0.0.1:15000", "tcp", 16384, 1024, 16, FINGERPRINT, Shape(2)
    ),
    "snapshot": Snapshot(9, {"rooms": [{"room": 1}], "none": None}),
}
ROWS = {
    "row": Row(RoomKey(ROOM, ATTEMPT), TokenOut(9, -0.5, ((9, -0.5), (4, -1.25))), 16),
    "row_without_log_probabilities": Row(RoomKey(1, 1), TokenOut(0)),
}

SECRET = bytes(range(32))  # of the seals
FRAMES = {
    "frame_open": (None, PLANE["heartbeat"], DECODE),
    "frame_sealed": (SECRET, PLANE["heartbeat"], DECODE),
}

Coder = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
CODERS: dict[str, Coder] = {
    **dict.fromkeys(PLANE, (encode, decode)),
    **dict.fromkeys(TO_RANK, (encode_link, decode_to_rank)),
    **dict.fromkeys(TO_FRONT, (encode_link, decode_to_front)),
}
MESSAGES: dict[str, Any] = {**PLANE, **TO_RANK, **TO_FRONT}


def golden(name: str) -> bytes:
    """Return the bytes that were agreed on."""
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def frame(name: str) -> bytes:
    """Return what goes over the plane for an example, sealed as the hundredth of its process."""
    secret, message, receiver = FRAMES[name]
    return Sealer(secret, 99).close(encode(message), receiver)


def _write() -> None:
    for name, message in MESSAGES.items():
        _put(name, CODERS[name][0](message))
    for name, row in ROWS.items():
        _put(name, pack(row).rstrip(b"\0"))
    for name in FRAMES:
        _put(name, frame(name))


def _put(name: str, raw: bytes) -> None:
    (GOLDEN / f"{name}.hex").write_text("\n".join(textwrap.wrap(raw.hex(), 96)) + "\n")


if __name__ == "__main__":
    _write()

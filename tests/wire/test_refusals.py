"""Bytes that are not exactly one valid message are refused with a reason, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.protocol import codec
from daemons.protocol.codec import MAGIC, BadMessage, decode, decode_to_front, decode_to_rank
from daemons.protocol.topology import PROTOCOL_VERSION
from tests.wire.examples import CODERS, MESSAGES, PLANE, golden

HEAD = MAGIC + bytes([PROTOCOL_VERSION])
DECODERS = [decode, decode_to_rank, decode_to_front]
Spoil = dict[str, object]

SENDER = {"instance": "d0", "epoch": 1, "rank": 0}
WRONG: list[tuple[str, Spoil]] = [
    *[(name, {"sender": SENDER | {"epoch": 0}}) for name in PLANE],
    *[(name, {"sender": SENDER | {"instance": "D0"}}) for name in PLANE],
    *[(name, {"sender": SENDER | {"instance": "d0\n"}}) for name in PLANE],
    *[(name, {"sender": SENDER | {"rank": -1}}) for name in PLANE],
    *[(name, {"sender": SENDER | {"zone": 1}}) for name in PLANE],
    *[(name, {"sender": ["d0", 1]}) for name in PLANE],
    *[(name, {"to_epoch": 0}) for name in PLANE],
    *[(name, {"to_epoch": 2**53}) for name in PLANE],
    *[(name, {"to_epoch": "1"}) for name in PLANE],
    *[(name, {"to_epoch": True}) for name in PLANE],
    *[(name, {"surprise": 1}) for name in PLANE],
    *[(name, {"type": "Progres"}) for name in PLANE],
    *[(name, {"type": 7}) for name in PLANE],
    *[
        (name, {field: value})
        for name in ("destination", "progress", "abort", "abort_answer")
        for field, value in (
            ("room", 0),
            ("room", 2**53),
            ("room", -1),
            ("room", 1.5),
            ("room", None),
            ("attempt", 0),
            ("attempt", 1001),
        )
    ],
    ("destination", {"pages": [-1]}),
    ("destination", {"pages": [1 << 20]}),
    ("destination", {"pages": ["7"]}),
    ("destination", {"pages": 7}),
    ("destination", {"row": -1}),
    ("destination", {"row": 1 << 20}),
    ("destination", {"prompt_tokens": 0}),
    ("destination", {"prefix_tokens": -1}),
    ("destination", {"window_pages": [-1]}),
    ("destination", {"window_pages": [1 << 20]}),
    ("destination", {"window_pages": 7}),
    ("progress", {"status": 5}),
    ("progress", {"status": -1}),
    ("progress", {"status": "SUCCESS"}),
    ("progress", {"sent_bytes": -1}),
    ("progress", {"fence": "dirty"}),
    ("progress", {"failure": {"cause": "no.such", "stage": "x"}}),
    ("progress", {"failure": {"stage": "x"}}),
    ("abort", {"failure": None}),
    ("abort_answer", {"fence": None}),
    ("heartbeat", {"sent_at_s": -1.0}),
    ("heartbeat", {"sent_at_s": float("nan")}),
    ("heartbeat", {"sent_at_s": float("inf")}),
    ("heartbeat", {"sent_at_s": "now"}),
    ("registration_answer", {"refused": 0}),
    ("register_buffers", {"reply_port": 0}),
    ("register_buffers", {"reply_port": 65536}),
    ("register_buffers", {"pages": 0}),
    ("register_buffers", {"pages": (1 << 20) + 1}),
    ("register_buffers", {"rows": 0}),
    ("register_buffers", {"window_pages": -1}),
    ("register_buffers", {"window_pages": (1 << 20) + 1}),
    ("register_buffers", {"rows_address": 0}),
    ("register_buffers", {"rows_address": 2**63}),
    ("register_buffers", {"row_bytes": 0}),
    ("register_buffers", {"regions": []}),
    ("register_buffers", {"regions": [[0, 6144, 0, 0, 0]]}),  # address 0
    ("register_buffers", {"regions": [[2**63, 6144, 0, 0, 0]]}),
    ("register_buffers", {"regions": [[4096, 0, 0, 0, 0]]}),
    ("register_buffers", {"regions": [[4096, 6144, 0, 2, 0]]}),  # neither key nor value
    ("register_buffers", {"regions": [[4096, 6144, -1, 0, 0]]}),
    ("register_buffers", {"regions": [[4096, 6144, 0, 0]]}),
    ("register_buffers", {"fingerprint": {"model": "m"}}),
]


def body(name: str) -> dict[str, object]:
    """Return a message of the plane as a plain map."""
    plain = msgspec.msgpack.decode(golden(name)[len(HEAD) :])
    assert isinstance(plain, dict)
    return plain


@pytest.mark.parametrize(("name", "spoil"), WRONG)
def test_a_field_that_is_wrong_unknown_or_out_of_range_is_refused(name: str, spoil: Spoil) -> None:
    with pytest.raises(BadMessage):
        decode(HEAD + msgspec.msgpack.encode(body(name) | spoil))


@pytest.mark.parametrize("name", PLANE)
def test_a_field_that_is_missing_is_refused_with_its_name(name: str) -> None:
    plain = body(name)
    del plain["to_epoch"]
    with pytest.raises(BadMessage, match="to_epoch"):
        decode(HEAD + msgspec.msgpack.encode(plain))


def test_the_reason_names_the_place() -> None:
    with pytest.raises(BadMessage, match=r"\$\.room"):
        decode(HEAD + msgspec.msgpack.encode(body("abort") | {"room": 0}))


@pytest.mark.parametrize("magic", [b"", b"P", b"PX", b"\0\0", b"DP"])
def test_other_magic_is_refused(magic: bytes) -> None:
    raw = magic + golden("heartbeat")[2:] if len(magic) == 2 else magic
    with pytest.raises(BadMessage, match="no magic"):
        decode(raw)


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 255])
def test_another_version_is_refused_with_both_values(version: int) -> None:
    raw = MAGIC + bytes([version]) + golden("heartbeat")[3:]
    with pytest.raises(BadMessage, match=f"ours {PROTOCOL_VERSION}, theirs {version}"):
        decode(raw)


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_behind_the_message_are_refused(name: str) -> None:
    with pytest.raises(BadMessage):
        CODERS[name][1](golden(name) + b"\0")


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_ends_early_is_refused_wherever_it_ends(name: str) -> None:
    raw = golden(name)
    for length in range(len(raw)):
        with pytest.raises(BadMessage):
            CODERS[name][1](raw[:length])


def test_two_messages_in_one_are_refused() -> None:
    with pytest.raises(BadMessage):
        decode(golden("heartbeat") + golden("heartbeat")[len(HEAD) :])


def test_too_many_bytes_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = golden("heartbeat")
    monkeypatch.setattr(codec, "MESSAGE_BYTES_LIMIT", len(raw) - 1)
    with pytest.raises(BadMessage, match=f"{len(raw)} bytes, the limit is {len(raw) - 1}"):
        decode(raw)


@pytest.mark.parametrize("opening", [b"\x81", b"\x91", b"\x81\xa1a"])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    for decoder, head in ((decode, HEAD), (decode_to_rank, b""), (decode_to_front, b"")):
        with pytest.raises(BadMessage):
            decoder(head + opening * 100_000)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_deep_nesting_is_refused_where_anything_is_allowed(opening: bytes) -> None:
    head = b"\x83\xa4type\xa8Snapshot\xa8question\x01\xa4body\x81\xa1b"
    with pytest.raises(BadMessage):
        decode_to_front(head + opening * 100_000)


def test_text_that_is_not_utf_8_is_refused() -> None:
    for decoder, head in ((decode, HEAD), (decode_to_rank, b""), (decode_to_front, b"")):
        with pytest.raises(BadMessage):
            decoder(head + b"\x81\xa4type\xa1\xff")


@pytest.mark.parametrize("decoder", DECODERS)
@given(raw=st.binary(max_size=200))
@settings(max_examples=2000, deadline=None)
def test_noise_is_refused_and_nothing_else_happens(
    decoder: Callable[[bytes], object], raw: bytes
) -> None:
    for prefix in (b"", HEAD):
        try:
            decoder(prefix + raw)
        except BadMessage as refusal:
            assert str(refusal)  # noqa: PT017 - most noise is refused, a message by luck is not


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_message_with_bytes_changed_is_a_message_or_refused(
    name: str, data: st.DataObject
) -> None:
    raw = bytearray(golden(name))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = CODERS[name][1](bytes(raw))
    except BadMessage:
        return
    assert type(message) in {type(example) for example in MESSAGES.values()}

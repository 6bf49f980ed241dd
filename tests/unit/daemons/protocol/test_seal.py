from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.protocol.codec import BadMessage, decode, encode
from daemons.protocol.handshake import Heartbeat
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import LIVES, SENDERS_LIMIT, WINDOW, Opener, Refused, Sealer, Why

ME, SENDER = PeerId("p0", 11), PeerId("d0", 22)
KEY = b"k" * 32
MESSAGE = encode(Heartbeat(SENDER, ME.epoch, 1.0))


def opener(secret: bytes | None = KEY, me: PeerId = ME) -> Opener:
    return Opener(me, secret)


def test_an_open_frame_is_opened_where_there_is_no_key() -> None:
    assert opener(None).open(Sealer(None).close(MESSAGE, ME)) == (MESSAGE, 0)


def test_a_sealed_frame_is_opened_by_who_has_the_key_and_is_meant() -> None:
    sealer = Sealer(KEY)
    for counter in (1, 2, 3):
        assert opener().open(sealer.close(MESSAGE, ME)) == (MESSAGE, counter)


@pytest.mark.parametrize(
    ("ours", "theirs", "receiver", "why"),
    [
        (KEY, None, ME, Why.UNSEALED),
        (None, KEY, ME, Why.NO_KEY),
        (KEY, b"o" * 32, ME, Why.BAD_SEAL),
        (KEY, KEY, PeerId("p1", 11), Why.BAD_SEAL),
        (KEY, KEY, PeerId("p0", 11, 1), Why.BAD_SEAL),
    ],
)
def test_each_wrong_seal_is_refused_with_its_reason(
    ours: bytes | None, theirs: bytes | None, receiver: PeerId, why: Why
) -> None:
    with pytest.raises(Refused) as refused:
        opener(ours).open(Sealer(theirs).close(MESSAGE, receiver))
    assert refused.value.why is why


def test_a_change_of_any_bit_of_a_sealed_frame_is_refused() -> None:
    frame = Sealer(KEY).close(MESSAGE, ME)
    for place in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[place] ^= 1 << bit
            with pytest.raises((Refused, BadMessage)):
                opener().open(bytes(changed))


@pytest.mark.parametrize("secret", [None, KEY])
def test_a_frame_that_ends_early_is_no_message(secret: bytes | None) -> None:
    frame = Sealer(secret).close(MESSAGE, ME)
    for length in range(len(frame)):
        with pytest.raises((Refused, BadMessage)):
            decode(opener(secret).open(frame[:length])[0])


def test_a_counter_is_taken_once_in_whatever_order_they_come() -> None:
    one = opener()
    for counter in (5, 3, 4, 9):
        one.admit(SENDER, counter)
    for counter in (5, 3, 4, 9):
        with pytest.raises(Refused, match="replayed"):
            one.admit(SENDER, counter)
    one.admit(SENDER, 1)


def test_what_is_too_old_for_the_window_is_refused_unseen() -> None:
    one = opener()
    one.admit(SENDER, WINDOW + 1)
    one.admit(SENDER, 2)
    with pytest.raises(Refused, match="replayed"):
        one.admit(SENDER, 1)


def test_each_life_counts_for_itself_and_none_is_repeated() -> None:
    one, newer = opener(), PeerId(SENDER.instance, SENDER.epoch + 1)
    for life in (SENDER, newer):
        one.admit(life, 7)
    one.admit(SENDER, 8)  # late, not repeated: the cores know that this life is over
    for life, counter in ((SENDER, 7), (SENDER, 8), (newer, 7)):
        with pytest.raises(Refused, match="replayed"):
            one.admit(life, counter)


@pytest.mark.parametrize("order", [1, -1])
def test_lives_are_bounded_and_what_is_forgotten_is_refused(order: int) -> None:
    one = opener()
    lives = [PeerId("d0", 100 + order * n) for n in range(LIVES + 3)]
    refused = 0
    for life in lives:
        try:
            one.admit(life, 1)
        except Refused:
            refused += 1
    again = 0
    for life in lives:
        try:
            one.admit(life, 1)
        except Refused:
            again += 1
    assert again == len(lives)
    assert refused == (0 if order == 1 else 3)  # a clock that went back far is not believed
    newest = max(lives, key=lambda life: life.epoch)
    one.admit(newest, 2)


def test_senders_are_bounded_and_known_ones_are_heard_on() -> None:
    one = opener()
    for rank in range(SENDERS_LIMIT):
        one.admit(PeerId("d0", 22, rank), 1)
    with pytest.raises(Refused, match="too many senders"):
        one.admit(PeerId("d1", 22), 1)
    one.admit(PeerId("d0", 22, 0), 2)


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=60))
def test_no_counter_is_ever_taken_twice(counters: list[int]) -> None:
    one, taken = opener(), []
    for counter in counters:
        try:
            one.admit(SENDER, counter)
        except Refused:
            continue
        taken.append(counter)
    assert len(taken) == len(set(taken))
    fresh = [c for i, c in enumerate(counters) if c > max(counters[:i], default=0)]
    assert set(fresh) <= set(taken)  # what is newer than all before is always taken


def test_neither_side_shows_its_secret() -> None:
    assert "kkkk" not in repr(Sealer(KEY)) + repr(opener())

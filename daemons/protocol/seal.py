"""Seals on the message plane: who has the key wrote this, for us, and it was not here before.

- With a key every message is sealed, without one none is; either side refuses the other's.
- A seal covers the head, the counter, the receiver's name and every byte of the message, which
  itself names the sender's life and the life it is meant for. It is checked before anything else
  of the message is looked at, in constant time.
- A counter grows with each message that a process seals. A receiver takes each counter of a
  sender's life once; what is too old to be remembered is refused like a repetition.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from enum import StrEnum

from daemons.protocol.codec import HEAD, MESSAGE_BYTES_LIMIT, BadMessage, check_head
from daemons.protocol.ids import PeerId

OPEN, SEALED = b"\x00", b"\x01"
COUNTER_BYTES = 8
MAC_BYTES = 32
WINDOW = 8192  # counters that may overtake each other where a connection is renewed
SENDERS_LIMIT = 4096  # ranks that one rank hears
LIVES = 4  # of each; what comes late of a life that ended is for the cores to judge

_BODY = len(HEAD) + len(SEALED) + COUNTER_BYTES + MAC_BYTES


class Why(StrEnum):
    """Why a message is refused before it is read; the name of its counter."""

    UNSEALED = "unsealed"  # we have a key, the sender has none
    NO_KEY = "sealed, no key here"  # and the other way round
    BAD_SEAL = "bad seal"  # another key, another receiver, or changed on the way
    REPLAYED = "replayed"
    CROWDED = "too many senders"


class Refused(Exception):
    """A message whose seal is not right."""

    def __init__(self, why: Why) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(slots=True)
class Sealer:
    """Closes what one process sends; ``secret`` None leaves it open."""

    secret: bytes | None = field(repr=False)
    sealed: int = 0  # the last counter

    def close(self, message: bytes, receiver: PeerId) -> bytes:
        """Return the frame of an encoded message."""
        body = message[len(HEAD) :]
        if self.secret is None:
            return HEAD + OPEN + body
        self.sealed += 1
        counter = self.sealed.to_bytes(COUNTER_BYTES)
        return HEAD + SEALED + counter + _mac(self.secret, receiver, counter, body) + body


@dataclass(slots=True)
class Heard:
    """Which counters of one sender's life were taken: bit n is the highest but n."""

    highest: int = 0
    taken: int = 0

    def take(self, counter: int) -> bool:
        """Say whether a counter is new, and remember it."""
        ahead = counter - self.highest
        if ahead > 0:
            self.highest = counter
            kept = self.taken << ahead if ahead < WINDOW else 0
            self.taken = (kept | 1) & ((1 << WINDOW) - 1)
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self.taken & bit:
            return False
        self.taken |= bit
        return True


@dataclass(slots=True)
class Lives:
    """The last lives of one rank, by epoch, and the latest one that is forgotten."""

    heard: dict[int, Heard] = field(default_factory=dict)
    forgotten: int = 0

    def take(self, epoch: int, counter: int) -> bool:
        """Say whether a counter of a life is new, and remember it."""
        if epoch <= self.forgotten:
            return False
        known = self.heard.setdefault(epoch, Heard())
        if len(self.heard) > LIVES:
            self.forgotten = min(self.heard)
            del self.heard[self.forgotten]
            if epoch == self.forgotten:
                return False
        return known.take(counter)


@dataclass(slots=True)
class Opener:
    """Opens what one process receives in one life."""

    me: PeerId
    secret: bytes | None = field(repr=False)
    _heard: dict[tuple[str, int], Lives] = field(default_factory=dict)

    def open(self, frame: bytes) -> tuple[bytes, int]:
        """Return the encoded message in a frame, and its counter (0: not sealed).

        Raises:
            BadMessage: no frame of this protocol.
            Refused: not sealed as we are.
        """
        if len(frame) > MESSAGE_BYTES_LIMIT + _BODY:
            raise BadMessage(f"{len(frame)} bytes, the limit is {MESSAGE_BYTES_LIMIT}")
        check_head(frame)
        kind = frame[len(HEAD) : len(HEAD) + 1]
        if kind == OPEN:
            if self.secret is not None:
                raise Refused(Why.UNSEALED)
            return HEAD + frame[len(HEAD) + 1 :], 0
        if kind != SEALED or len(frame) < _BODY:
            raise BadMessage("neither an open nor a sealed frame")
        if self.secret is None:
            raise Refused(Why.NO_KEY)
        at = len(HEAD) + 1
        counter, body = frame[at : at + COUNTER_BYTES], frame[_BODY:]
        expected = _mac(self.secret, self.me, counter, body)
        if not hmac.compare_digest(expected, frame[at + COUNTER_BYTES : _BODY]):
            raise Refused(Why.BAD_SEAL)
        return HEAD + body, int.from_bytes(counter)

    def admit(self, sender: PeerId, counter: int) -> None:
        """Take the counter of a message that was opened and read; raises Refused."""
        if self.secret is None:
            return
        place = (sender.instance, sender.rank)
        if place not in self._heard and len(self._heard) >= SENDERS_LIMIT:
            raise Refused(Why.CROWDED)
        if not self._heard.setdefault(place, Lives()).take(sender.epoch, counter):
            raise Refused(Why.REPLAYED)


def _mac(secret: bytes, receiver: PeerId, counter: bytes, body: bytes) -> bytes:
    # The receiver's epoch is in the body; its name is not, and two lives may share a number.
    name = f"{receiver.instance}/{receiver.rank}".encode()
    mac = hmac.new(secret, HEAD + SEALED + counter + bytes([len(name)]) + name, "sha256")
    mac.update(body)
    return mac.digest()

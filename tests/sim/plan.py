"""What one seed means: sizes, timers, and which faults happen how often.

Everything is drawn here and nowhere else decides what may go wrong; a calm plan has no faults at
all, and then every room must succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from daemons.cluster.worker import Timers

CALM_SHARE = 0.12
TOKENS_LIMIT = 40  # longest prompt + output of a room


@dataclass(frozen=True, slots=True)
class Plan:
    """One world. Rates are probabilities of each occasion, counts are per world."""

    seed: int
    calm: bool
    # sizes
    prefills: int
    decodes: int
    page_size: int
    prefill_pages: int
    decode_pages: int
    prefill_rows: int
    decode_rows: int
    chunk_tokens: int
    batch_tokens: int
    batch_rooms: int
    max_rooms: int
    max_orphans: int
    max_tombs: int
    rooms: int
    span_s: float  # rooms come within
    # time
    timers: Timers
    tick_s: float
    step_s: float  # mean of a forward
    page_s: float  # mean of one page on the wire
    delay_s: float  # mean of one message
    write_timeout_s: float
    # the message plane
    ordered: bool
    drop: float
    duplicate: float
    straggle: float  # a message is late by up to straggle_s
    straggle_s: float
    holds: bool  # a partition holds messages back, otherwise it drops them
    same_port: bool  # a restarted process gets the port of its predecessor
    silent_death: bool  # nobody is told that a connection is lost
    # the engine and the bytes
    room_error: float
    step_failure: float
    gone: float
    cut: float
    # clients
    cancel: float
    finish: float
    one_leg: float
    twin: float  # the balancer cancels the other leg when one has failed
    again: float  # a failed room is tried again, with the next attempt
    twice: float  # the same leg is submitted twice
    impatient: float  # a room with a short time of its own
    # the phone book
    book_s: float
    book_fails: float
    book_stale: float
    # daemons
    crashes: int
    stops: int
    partitions: int
    freezes: int
    flaps: int  # connections that are lost without a reason
    drains: int
    accidents: int  # a writer is cut, killed or frozen while it writes
    unlike: float  # prefills of another model; the phone book may tell so, or not
    too_long: float  # prompts that no pool can hold, or none at all
    # overcommitting
    prefix_cache: bool
    alike: float  # prompts that begin like an earlier text
    host_pages: int  # that a decode may keep
    copy_failure: float  # of a copy to the host, or back
    long_texts: bool  # short prompts, long answers, all at once
    retractions: int  # moments at which all running rooms of a decode are told to leave
    # without a prefill
    local: float  # rooms whose decode computes the prompt
    steps_ahead: int
    grain: Literal["layer", "chunk"]  # of writes
    window: int | None  # tokens that one sees in one of the two layers
    decode_window_rooms: int  # for how many rooms there are window pages
    prefill_window_rooms: int
    checksum: Literal["off", "sampled", "all"]  # chunks that prefill sums
    spoil: float  # of pages: one lands as another than was sent; only where all are summed

    @property
    def gone_s(self) -> float:
        """How long after a cancel a room may last where nothing is wrong.

        The word to the twin; messages to the peer and back; steps, and copies before them; what
        is on the wire, for a write that has begun is not broken off.
        """
        pieces = -(-TOKENS_LIMIT // self.page_size) + 2
        return 0.3 + 6 * self.delay_s + 12 * self.step_s + 2 * pieces * self.page_s


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = Random(f"plan {seed}")
    calm = rng.random() < CALM_SHARE

    def rate(high: float, share: float = 0.5) -> float:
        happens, value = rng.random() < share, rng.random() * high
        return value if happens and not calm else 0.0

    def times(high: int, share: float = 0.4) -> int:
        happens, value = rng.random() < share, rng.randint(1, high)
        return value if happens and not calm else 0

    page_size = rng.choice((1, 2, 4, 4, 16))
    page_s = rng.choice((0.002, 0.02, 0.1, 0.2)) * min(1.0, page_size / 4)
    whole = -(-TOKENS_LIMIT // page_size)
    roomy = rng.choice((1.0, 1.5, 3.0))
    rooms = 5 + int(35 * rng.random() ** 4)
    tight = not calm and rng.random() < 0.1
    plan = Plan(
        seed=seed,
        calm=calm,
        prefills=1 + (rng.random() < 0.3),
        decodes=1 + (rng.random() < 0.3),
        page_size=page_size,
        prefill_pages=int(whole * rng.choice((1.0, 1.5, 3.0))),
        decode_pages=int(whole * roomy) - (whole // 3 if tight else 0),
        prefill_rows=rng.choice((1, 2, 4, 8)),
        decode_rows=rng.choice((1, 2, 4, 8)),
        chunk_tokens=rng.choice((4, 8, 16, 64)),
        batch_tokens=rng.choice((8, 16, 64)),
        batch_rooms=rng.choice((1, 2, 4, 16)),
        max_rooms=4 if tight else 1000,
        max_orphans=rng.choice((1, 2, 1000)) if not calm else 1000,
        max_tombs=rng.choice((1, 3, 1000, 1000)) if not calm else 1000,
        rooms=rooms,
        span_s=rng.choice((0.5, 3.0, 6.0, 10.0)),
        timers=_timers(rng) if not calm else _patient(),
        tick_s=rng.choice((0.1, 0.2, 0.3)),
        step_s=rng.choice((0.01, 0.05, 0.2)),
        page_s=page_s,
        delay_s=rng.choice((0.001, 0.02, 0.1)),
        write_timeout_s=rng.choice((2.0, 3.0)),
        ordered=rng.random() < 0.6,
        drop=rate(0.15),
        duplicate=rate(0.2),
        straggle=rate(0.1),
        straggle_s=rng.choice((0.5, 3.0)),
        holds=rng.random() < 0.5,
        same_port=rng.random() < 0.3,
        silent_death=rng.random() < 0.3,
        room_error=rate(0.03, 0.3),
        step_failure=rate(0.05, 0.3),
        gone=rate(0.1, 0.3),
        cut=rate(0.1, 0.5),
        cancel=rate(0.6),
        finish=rng.random() * 0.5,
        one_leg=rate(0.3, 0.3),
        twin=rng.choice((0.0, 1.0, 1.0, rng.random())),
        again=rate(0.5),
        twice=rng.random() * 0.1,
        impatient=rate(0.5, 0.3),
        book_s=rng.choice((0.01, 0.1, 1.0)),
        book_fails=rate(0.5, 0.3),
        book_stale=rate(0.5, 0.4),
        crashes=times(3),
        stops=times(2, 0.2),
        partitions=times(2, 0.3),
        freezes=times(2, 0.3),
        flaps=times(3, 0.2),
        drains=times(1, 0.15),
        accidents=times(2, 0.3),
        unlike=rate(0.5, 0.1),
        too_long=rate(0.1, 0.3),
        prefix_cache=rng.random() < 0.9,
        alike=rng.choice((0.0, 0.3, 0.7, 0.9)),
        host_pages=int(whole * rng.choice((0.0, 0.5, 1.0, 2.0, 4.0))),
        copy_failure=rate(0.1, 0.3),
        retractions=rng.choice((0, 0, 0, 1, 4)),
        long_texts=rng.random() < 0.25,
        local=rng.choice((0.0, 0.0, 0.2, 0.5, 1.0)),
        steps_ahead=rng.choice((0, 1, 1)),
        grain=rng.choice(("layer", "layer", "chunk")),
        window=rng.choice((None, None, None, 1, 3, 9)),
        **_windows(seed),
        **_sums(seed, calm=calm),
    )
    if not plan.long_texts:
        return plan
    return replace(
        plan,
        span_s=0.5,
        rooms=8 + plan.rooms // 3,
        batch_rooms=max(4, plan.batch_rooms),
        decode_rows=max(4, plan.decode_rows),
        decode_pages=whole + rng.randint(0, whole),
        host_pages=whole * rng.choice((1, 2, 4)),
        prefill_rows=8,
        prefill_pages=4 * whole,
        page_s=page_s / 8,
    )


def _windows(seed: int) -> dict[str, Any]:
    """Draw apart as well."""
    rng = Random(f"windows {seed}")
    rooms = {"decode": rng.choice((1, 2, 4, 16)), "prefill": rng.choice((1, 2, 4))}
    return {f"{role}_window_rooms": count for role, count in rooms.items()}


def _sums(seed: int, *, calm: bool) -> dict[str, Any]:
    """Draw apart, so that the rest of a seed is as it was without sums."""
    rng = Random(f"sums {seed}")
    checksum = rng.choice(("off", "sampled", "all", "all"))
    spoils = checksum == "all" and not calm and rng.random() < 0.4
    return {"checksum": checksum, "spoil": rng.random() * 0.3 if spoils else 0.0}


def _timers(rng: Random) -> Timers:
    return Timers(
        handshake_s=rng.choice((3.0, 6.0)),
        queue_s=rng.choice((3.0, 8.0)),
        destination_s=rng.choice((3.0, 6.0)),
        progress_s=rng.choice((3.0, 6.0)),
        heartbeat_s=0.5,
        peer_timeout_s=rng.choice((1.5, 2.5)),
        settle_s=rng.choice((0.5, 1.0, 2.0)),
        tombstone_s=20.0,
    )


def _patient() -> Timers:
    return Timers(
        handshake_s=1000.0,
        queue_s=1000.0,
        destination_s=1000.0,
        progress_s=1000.0,
        tombstone_s=20.0,
    )

"""What is told of the wire."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from daemons.prefill.wire_tally import WireTally
from daemons.transfer.backend import WriteCut


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_counts_are_kept_by_peer() -> None:
    tally = WireTally(Clock())
    tally.wrote("d0", 1000, 2, 8, 0.5, "cma")
    tally.wrote("d0", 500, 1, 4, 0.5, "cma")
    tally.wrote("d1", 1, 1, 1, 0.1, "tcp")
    tally.waited("d0", 0.2)
    tally.failed("d1")
    wires = tally.wires()
    one, other = wires["d0"], wires["d1"]
    assert (one.transport, one.bytes, one.copies, one.unmerged, one.failed) == (
        "cma", 1500, 3, 12, 0,
    )  # fmt: skip
    assert (other.transport, other.bytes, other.failed) == ("tcp", 1, 1)
    assert (sum(one.writing.counts), one.writing.sum_s) == (2, 1.0)
    assert (sum(one.queued.counts), one.queued.sum_s) == (1, 0.2)


def test_the_share_is_of_the_last_seconds() -> None:
    clock = Clock()
    tally = WireTally(clock)
    tally.waited("d0", 0.0)
    clock.now_s += 5
    with tally.busy("d0"):
        clock.now_s += 5
    assert tally.wires()["d0"].share == 0.5
    clock.now_s += 1000
    assert tally.wires()["d0"].share < 0.1


def test_a_write_that_stands_still_has_its_share_before_it_is_over() -> None:
    clock = Clock()
    tally = WireTally(clock)
    with tally.busy("d0"):
        clock.now_s += 8
        assert tally.wires()["d0"].share == 1.0


def test_a_write_that_failed_has_had_its_share() -> None:
    clock = Clock()
    tally = WireTally(clock)
    with suppress(WriteCut), tally.busy("d0"):
        clock.now_s += 8
        raise WriteCut("reset")
    clock.now_s += 8
    assert tally.wires()["d0"].share == 0.5


def test_nobody_was_written_to_is_told_as_nothing() -> None:
    assert WireTally().wires() == {}

"""The simulated cluster over many seeds, and proof that it would notice."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from daemons.decode.commands import ZeroRow
from daemons.decode.ends import Ends as DecodeEnds
from daemons.decode.events import RowRead
from daemons.decode.hand_over import HandOver
from daemons.decode.outbox import Outbox as DecodeOutbox
from daemons.decode.quarantine import Quarantine
from daemons.decode.request import Request
from daemons.decode.running_batch import RunningBatch
from daemons.kv.ledger import OutOfPages
from daemons.kv.window_table import WindowTable
from daemons.prefill.admission import Admission as PrefillAdmission
from daemons.prefill.doubts import Doubts
from daemons.prefill.ends import Ends as PrefillEnds
from daemons.prefill.outbox import Outbox as PrefillOutbox
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.handshake import Fence
from daemons.runtime.liveness import Liveness
from daemons.runtime.tombstones import Tombstones
from tests.sim.__main__ import run_seed, trace_hash
from tests.sim.plan import draw

ROOT = Path(__file__).parents[2]
SEEDS = 2000
RANGE = 100
MUTANT_SEEDS = 150

Mutation = Callable[[pytest.MonkeyPatch], None]


def run_range(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            run_seed(seed)
        except Exception as error:
            error.add_note(f"again: python -m tests.sim --seed {seed} --trace")
            raise


@pytest.fixture(scope="module", autouse=True)
def ranges(request: pytest.FixtureRequest) -> Iterator[dict[int, Future[None]]]:
    """The ranges that are asked for, under way on all cores from the first test of this file on."""
    mine = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    asked = [item.callspec.params for item in mine if hasattr(item, "callspec")]
    firsts = [params["first"] for params in asked if "first" in params]
    if not firsts:
        yield {}
        return
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        yield {first: pool.submit(run_range, first, RANGE) for first in firsts}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("seed", [3, 77, 2024])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert trace_hash(seed) == trace_hash(seed)


def test_a_seed_replays_exactly_in_a_process_with_other_string_hashes() -> None:
    code = "from tests.sim.__main__ import trace_hash; print(trace_hash(5))"
    environ = os.environ | {"PYTHONHASHSEED": "4711"}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, check=True
    )
    assert told.stdout.decode().strip() == trace_hash(5)


def test_other_seeds_are_other_runs() -> None:
    assert len({trace_hash(seed) for seed in range(5)}) == 5


def test_a_spoilt_page_is_refused_by_its_sum_and_nothing_else_is() -> None:
    """Each world checks it room by room; here, that there was something to check."""
    seen = Counter[str]()
    for seed in [seed for seed in range(SEEDS) if draw(seed).spoil > 0.1][:20]:
        seen += run_seed(seed).seen
    assert seen["spoilt rooms that were refused"] >= 10
    assert seen["rooms whose sums were compared"] > seen["spoilt rooms that were refused"]
    assert seen["legs failed by a checksum"] == seen["spoilt rooms that were refused"]


# --- mutants: each is a defect that the simulator must find ---


def quarantine_ends_by_a_timer(patch: pytest.MonkeyPatch) -> None:
    def unanswered(self: Quarantine, now: float) -> list[object]:
        for held in self.rooms.values():
            if held.settles_s is None and now - held.asked_s >= 1.0:
                held.settles_s = 0.0
        return []

    patch.setattr(Quarantine, "unanswered", unanswered)


def a_cut_write_counts_as_clean(patch: pytest.MonkeyPatch) -> None:
    answered = Quarantine.answered
    patch.setattr(
        Quarantine,
        "answered",
        lambda self, key, sender, _, now: answered(self, key, sender, Fence.CLEAN, now),
    )


def a_dead_writer_counts_as_clean(patch: pytest.MonkeyPatch) -> None:
    def died(self: Quarantine, peer: object, now: float) -> None:
        for held in self.rooms.values():
            if held.peer == peer:
                held.settles_s = 0.0

    patch.setattr(Quarantine, "died", died)


def silence_counts_as_death(patch: pytest.MonkeyPatch) -> None:
    isolate = DecodeEnds._isolate

    def hasty(
        self: DecodeEnds, request: Request, failure: Failure, now: float, fence: Fence | None
    ) -> None:
        isolate(self, request, failure, now, fence)
        if failure.cause is Cause.PEER_UNREACHABLE and request.peer is not None:
            self.quarantine.died(request.peer, now)

    patch.setattr(DecodeEnds, "_isolate", hasty)


def time_in_the_freezer_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quarantine, "_awake", lambda self, now: now)


def failed_is_said_while_writes_are_under_way(patch: pytest.MonkeyPatch) -> None:
    settle = PrefillEnds.settle

    def hasty(self: PrefillEnds, request: object, now: float) -> None:
        unsettled, request.unsettled = request.unsettled, 0  # type: ignore[attr-defined]
        steps, request.step_tokens = request.step_tokens, 1  # type: ignore[attr-defined]
        settle(self, request, now)  # type: ignore[arg-type]
        request.unsettled, request.step_tokens = unsettled, steps  # type: ignore[attr-defined]
        settle(self, request, now)  # type: ignore[arg-type]

    patch.setattr(PrefillEnds, "settle", hasty)


def an_abort_is_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    abort = PrefillAdmission.abort

    def hasty(self: PrefillAdmission, message: object, now: float) -> None:
        abort(self, message, now)  # type: ignore[arg-type]
        self.out.answer(message, Fence.CLEAN)  # type: ignore[arg-type]

    patch.setattr(PrefillAdmission, "abort", hasty)


def a_row_is_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    do = DecodeOutbox.do

    def forgetful(self: DecodeOutbox, *commands: object) -> None:
        do(self, *[c for c in commands if not isinstance(c, ZeroRow)])  # type: ignore[arg-type]

    patch.setattr(DecodeOutbox, "do", forgetful)


def ended_rooms_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tombstones, "get", lambda self, key: None)


def pages_are_released_under_a_step(patch: pytest.MonkeyPatch) -> None:
    end = DecodeEnds.end

    def hasty(self: DecodeEnds, request: object, failure: object, now: float) -> None:
        request.in_steps = 0  # type: ignore[attr-defined]
        end(self, request, failure, now)  # type: ignore[arg-type]

    patch.setattr(DecodeEnds, "end", hasty)


def source_pages_are_released_under_a_write(patch: pytest.MonkeyPatch) -> None:
    fail = PrefillEnds.fail

    def hasty(self: PrefillEnds, request: object, failure: object, now: float) -> None:
        if request.row is not None:  # type: ignore[attr-defined]
            self.memory.release(request)  # type: ignore[arg-type]
            request.pages, request.row = (), None  # type: ignore[attr-defined]
            request.window = WindowTable()  # type: ignore[attr-defined]
        fail(self, request, failure, now)  # type: ignore[arg-type]

    patch.setattr(PrefillEnds, "fail", hasty)


def pages_are_promised_twice(patch: pytest.MonkeyPatch) -> None:

    patch.setattr(Request, "promised", property(lambda self: 0))


def a_batch_forgets_a_page(patch: pytest.MonkeyPatch) -> None:
    step = RunningBatch.step

    def short(self: RunningBatch, pages: object, **more: bool) -> list[object]:
        items = step(self, pages, **more)  # type: ignore[arg-type]
        for request in self.rooms.values():
            if len(request.pages) > 2:
                first, second, *others = request.pages
                request.pages = (second, first, *others)
        return items  # type: ignore[return-value]

    patch.setattr(RunningBatch, "step", short)


def a_failure_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    tell = PrefillOutbox.tell_failure

    def chatty(self: PrefillOutbox, key: object, failure: object) -> None:
        tell(self, key, failure)  # type: ignore[arg-type]
        tell(self, key, failure)  # type: ignore[arg-type]

    patch.setattr(PrefillOutbox, "tell_failure", chatty)


def a_dead_life_may_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "is_buried", lambda self, peer: False)


def a_cancel_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecodeOutbox, "abort", lambda self, peer, key, failure: None)


def a_broken_write_is_held_against_a_decode_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Doubts, "refusal", lambda self, peer, now: "it broke" if peer in self.known else ""
    )


def what_was_summed_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    read = HandOver.row_read

    def trusting(self: HandOver, event: RowRead, now: float) -> None:
        row = event.row and replace(event.row, sums=())
        read(self, replace(event, row=row), now)

    patch.setattr(HandOver, "row_read", trusting)


def sums_that_differ_are_taken_for_the_same(patch: pytest.MonkeyPatch) -> None:
    verified = HandOver.verified
    patch.setattr(
        HandOver,
        "verified",
        lambda self, event, now: verified(self, replace(event, wrong=""), now),
    )


MUTANTS: list[Mutation] = [
    a_broken_write_is_held_against_a_decode_for_ever,
    quarantine_ends_by_a_timer,
    a_cut_write_counts_as_clean,
    a_dead_writer_counts_as_clean,
    silence_counts_as_death,
    time_in_the_freezer_counts,
    failed_is_said_while_writes_are_under_way,
    an_abort_is_answered_at_once,
    a_row_is_not_zeroed,
    ended_rooms_are_forgotten,
    pages_are_released_under_a_step,
    source_pages_are_released_under_a_write,
    pages_are_promised_twice,
    a_batch_forgets_a_page,
    a_failure_is_told_twice,
    a_dead_life_may_come_back,
    a_cancel_is_lost,
    what_was_summed_is_not_compared,
    sums_that_differ_are_taken_for_the_same,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_simulator_finds(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, OutOfPages)):
        run_range(0, MUTANT_SEEDS)


@pytest.mark.parametrize("first", range(0, SEEDS, RANGE))
def test_no_seed_of_the_range_breaks_an_invariant(
    first: int, ranges: dict[int, Future[None]]
) -> None:
    ranges[first].result()

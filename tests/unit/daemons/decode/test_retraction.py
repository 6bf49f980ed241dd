"""Rooms leave the batch and come back, through the whole core."""

from __future__ import annotations

import pytest

from daemons.decode.events import Retract
from daemons.engine.step import End, Keep, Kept, Restore, Restored, Run
from daemons.kv.ledger import Owner
from daemons.protocol.causes import Cause
from daemons.protocol.handshake import Destination
from daemons.runtime.events import Cancelled, Finished, Stopping, Tick
from tests.support.cores import (
    CANCELLED,
    came,
    causes,
    done,
    is_idle,
    key,
    of,
    said,
    submitted,
    told,
)
from tests.support.decode_scenes import (
    SUCCESS,
    heard,
    paired,
    retracted,
    row_read,
    running,
    squeezed,
)


def test_rooms_share_pages_that_they_may_not_all_need_where_the_host_helps() -> None:
    assert len(squeezed().stages.running.rooms) == 2
    core = paired(pages=6)
    core.handle(submitted(1, tokens=6, most=9), 1.0)
    assert said(core.handle(submitted(2, tokens=6, most=9), 2.0), Destination) == []


def test_a_step_that_lacks_a_page_retracts_the_room_with_the_least_output() -> None:
    core, (keep,) = retracted()
    assert keep == Keep(key(2), (2, 3, 5))
    assert core.recorder.stage(key(2)) == "retracted"
    assert core.counters["retractions"] == 1
    assert core.pages.owner(2) == (Owner.REQUEST, key(2))  # still being read


def test_pages_are_free_only_when_they_have_been_copied() -> None:
    core, _ = retracted()
    assert core.pages.free == 0
    commands = core.handle(Kept(key(2)), 5.1)
    ((item,),) = (run.items for run in of(commands, Run))
    assert (item.key, item.pages) == (key(1), (0, 1, 4, 5))
    assert core.pages.free == 2


def test_a_retracted_room_comes_back_before_anybody_new_and_goes_on_where_it_was() -> None:
    core, _ = retracted()
    core.handle(Kept(key(2)), 5.1)
    core.handle(submitted(3, tokens=1, most=1), 5.2)
    assert core.recorder.stage(key(3)) == "prealloc"
    commands: list[object] = []
    while not (back := of(commands, Restore)):  # until room 1 has ended
        commands = list(core.handle(done(1), 6.0))
    assert core.recorder.stage(key(1)) == ""
    assert back == [Restore(key(2), (0, 1, 2))]
    assert core.recorder.stage(key(3)) == "prealloc"
    commands = list(core.handle(Restored(key(2)), 7.0))
    assert core.recorder.stage(key(2)) == "running"
    ((item,),) = (run.items for run in of(commands, Run))
    assert (item.start, item.pages) == (11, (0, 1, 2))
    assert core.recorder.stage(key(3)) == "transfer"


@pytest.mark.parametrize("when", ["copied out", "kept", "copied back"])
def test_a_retracted_room_can_be_cancelled_at_any_time(when: str) -> None:
    core, _ = retracted()
    if when != "copied out":
        core.handle(Kept(key(2)), 5.1)
        core.handle(Finished(key(1)), 5.2)
    if when == "copied back":
        assert of(core.handle(done(1), 5.3), Restore)
    assert causes(core.handle(Cancelled(key(2), CANCELLED), 6.0)) == [Cause.CLIENT_CANCELLED]
    core.handle(Finished(key(1)), 6.0)
    if when == "copied out":
        assert of(core.handle(Kept(key(2)), 6.1), End) == [End(key(2))]
        core.handle(done(1), 6.2)
    elif when == "kept":
        core.handle(done(1), 6.1)
    else:
        assert core.pages.owner(0) == (Owner.REQUEST, key(2))  # still being written
        assert of(core.handle(Restored(key(2)), 6.1), End) == [End(key(2))]
    assert core.stages.kept_pages == 0
    assert is_idle(core)


def test_a_retracted_room_that_runs_out_of_time_ends() -> None:
    core, _ = retracted()
    core.handle(Kept(key(2)), 5.1)
    heard(core, 700.0)
    assert Cause.TOTAL_TIMEOUT in causes(core.handle(Tick(), 700.0))
    assert core.stages.kept_pages == 0


def test_a_stop_string_ends_a_retracted_room_well() -> None:
    core, _ = retracted()
    assert told(core.handle(Finished(key(2)), 5.1)) == []
    assert of(core.handle(Kept(key(2)), 5.2), End) == [End(key(2))]
    assert core.recorder.stories(2)[0].failure is None


def test_a_copy_that_breaks_fails_its_room_and_frees_its_pages() -> None:
    core, _ = retracted()
    assert causes(core.handle(Kept(key(2), "no memory"), 5.1)) == [Cause.ENGINE_FAILED]
    assert core.pages.free == 2  # room 1 has the others
    core, _ = retracted()
    core.handle(Kept(key(2)), 5.1)
    core.handle(Finished(key(1)), 5.2)
    core.handle(done(1), 5.3)
    assert causes(core.handle(Restored(key(2), "broke"), 5.4)) == [Cause.ENGINE_FAILED]
    assert is_idle(core)


def test_stopping_ends_retracted_rooms_too() -> None:
    core, _ = retracted()
    stopping = causes(core.handle(Stopping(), 5.1))
    assert stopping == [Cause.INSTANCE_STOPPING] * 2
    core.handle(Kept(key(2)), 5.2)
    assert is_idle(core)


def test_a_room_leaves_the_batch_when_it_is_told_to_and_the_step_is_over() -> None:
    core = paired(retract_tokens=64)
    core.handle(submitted(most=9), 0.0)
    core.handle(came(SUCCESS), 1.0)
    core.handle(row_read(), 1.0)
    assert of(core.handle(Retract(key()), 1.1), Keep) == []
    assert of(core.handle(done(1), 2.0), Keep) == [Keep(key(), (0, 1))]
    assert of(core.handle(Kept(key()), 2.1), Restore) == [Restore(key(), (0, 1))]  # it is alone
    assert core.handle(Retract(key(9)), 2.2) == []


def test_nobody_leaves_where_the_host_has_no_place() -> None:
    core = running(most=9)
    core.handle(Retract(key()), 1.1)
    assert of(core.handle(done(1), 2.0), Keep) == []

"""The texts of rooms, through the whole core."""

from __future__ import annotations

import pytest

from daemons.engine.step import Begin, End
from daemons.protocol.generate import FinishReason, Sampling
from daemons.protocol.status import Status
from daemons.runtime.events import Finished
from tests.support.cores import came, done, is_idle, key, of, progress, submitted, told
from tests.support.decode_scenes import SUCCESS, paired, row_read, running


@pytest.mark.parametrize(
    ("first", "most", "finish", "token"),
    [(5, 1, FinishReason.LENGTH, None), (999, 5, FinishReason.STOP, 999)],
)
def test_the_transferred_token_may_be_the_last(
    first: int, most: int, finish: FinishReason, token: int | None
) -> None:
    core = paired()
    core.handle(submitted(most=most), 0.0)
    core.handle(came(SUCCESS), 1.0)
    commands = core.handle(row_read(first=first), 1.0)
    (output,) = told(commands)
    assert (output.finish, output.finish_token) == (finish, token)
    assert of(commands, Begin) == []
    assert of(commands, End) == []
    assert is_idle(core)


def test_a_text_ends_with_its_stop_token() -> None:
    core = running(most=9)
    (output,) = told(core.handle(done(1, token=999), 2.0))
    assert (output.finish, output.finish_token) == (FinishReason.STOP, 999)
    assert is_idle(core)


def test_a_stop_string_ends_a_room_well_and_silently() -> None:
    core = running(most=9)
    commands = core.handle(Finished(key()), 1.5)
    assert told(commands) == []
    assert core.pages.free < core.pages.size  # the step still uses them
    commands = core.handle(done(1), 2.0)
    assert told(commands) == []
    assert of(commands, End) == [End(key())]
    assert is_idle(core)
    assert core.recorder.stories(1)[0].failure is None


def test_a_stop_string_in_the_first_token_ends_a_room_before_the_batch() -> None:
    core = running(most=9)
    core.handle(submitted(2), 1.0)
    core.handle(came(progress(Status.SUCCESS, 2)), 1.0)
    core.handle(row_read(2), 1.0)
    assert of(core.handle(Finished(key(2)), 1.5), End) == [End(key(2))]
    assert core.handle(Finished(key(2)), 1.6) == []


def test_sampling_that_ignores_the_end_of_sequence_goes_on() -> None:
    core = paired()
    sampling = Sampling(max_tokens=3, eos_token_ids=(999,), ignore_eos=True)
    core.handle(submitted(sampling=sampling), 0.0)
    core.handle(came(SUCCESS), 1.0)
    (output,) = told(core.handle(row_read(first=999), 1.0))
    assert output.finish is None

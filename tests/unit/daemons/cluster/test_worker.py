"""Settings that both kinds of worker have."""

from __future__ import annotations

import msgspec
import pytest

from daemons.cluster.worker import Timers


def test_every_timer_has_a_default() -> None:
    timers = msgspec.convert({}, Timers)
    assert timers == Timers()
    assert timers.peer_timeout_s > timers.heartbeat_s


def test_a_dead_peer_is_remembered_longer_than_its_messages_may_wait() -> None:
    timers = Timers()
    assert timers.tombstone_s > max(timers.destination_s, timers.queue_s, timers.progress_s)


@pytest.mark.parametrize("wrong", [{"queue_s": 0}, {"queue_s": 86401}, {"queue": 5}])
def test_a_timer_out_of_range_or_unknown_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Timers)

"""What can happen to a rank of either kind: values."""

from __future__ import annotations

import dataclasses

import pytest

from daemons.decode import events as decode_events
from daemons.prefill import events as prefill_events
from daemons.protocol.ids import PeerId
from daemons.runtime import events


def test_events_are_values_that_nobody_changes() -> None:
    event = events.Probed(PeerId("p0", 1), refused=True)
    assert event == events.Probed(PeerId("p0", 1), refused=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.refused = False  # type: ignore[misc]


def test_both_kinds_of_daemon_take_every_shared_event() -> None:
    shared = {
        kind
        for kind in vars(events).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == events.__name__
    }
    assert shared
    assert shared <= set(prefill_events.Event.__args__)
    assert shared <= set(decode_events.Event.__args__)

"""What a core of either kind asks its shell to do: values."""

from __future__ import annotations

import dataclasses

import pytest

from daemons.decode import commands as decode_commands
from daemons.prefill import commands as prefill_commands
from daemons.protocol.ids import PeerId
from daemons.runtime import commands


def test_commands_are_values_that_nobody_changes() -> None:
    command = commands.Connect(PeerId("p0", 1), "h", 9)
    assert command == commands.Connect(PeerId("p0", 1), "h", 9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        command.port = 10  # type: ignore[misc]


def test_both_kinds_of_daemon_may_give_every_shared_command() -> None:
    shared = {
        kind
        for kind in vars(commands).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == commands.__name__
    }
    assert shared
    assert shared <= set(prefill_commands.Command.__args__)
    assert shared <= set(decode_commands.Command.__args__)

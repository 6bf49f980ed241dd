"""NIXL where it is not, and what is refused before it is asked; the rest is conformance's."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import nixl
from daemons.transfer.backend import Copy, PeerGone, Region
from daemons.transfer.config import TransferConfig


@dataclass
class Agent:
    """In place of an agent: remembers what was registered."""

    name: str
    registered: list[Any] = field(default_factory=list)

    def register_memory(self, rows: list[Any], kind: str) -> None:
        self.registered += rows

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        raise RuntimeError("nobody has that metadata")


def backend() -> nixl.Nixl:
    module = SimpleNamespace(
        nixl_agent=lambda name, config: Agent(name), nixl_agent_config=lambda backends: None
    )
    return nixl.Nixl(module, TransferConfig(backend="nixl"))


def test_without_nixl_the_operator_is_told_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl_cu12", None)
    with pytest.raises(OperatorError, match="does not load") as error:
        nixl.create(TransferConfig(backend="nixl"), "127.0.0.1")
    assert "scripts/install --nixl" in error.value.hint


@pytest.mark.parametrize("session", ["", "127.0.0.1:1", "nixl:###", "nixl:YWJj", "mooncake=a:1"])
def test_a_session_that_leads_nowhere_is_gone(session: str) -> None:
    one = backend()
    one.register([Region(4096, 64)])
    with pytest.raises(PeerGone):
        one.write(session, [Copy(4096, 1, 64)])
    assert one.transport_to(session) == ""


def test_a_session_can_be_one_part_of_several() -> None:
    session = backend().session
    assert session.startswith("nixl:")
    assert not set(session) & set(",=")


def test_descriptors_are_rows_of_address_length_and_device() -> None:
    found = nixl.rows(np.array([10, 20]), np.array([3, 4]))
    assert found.tolist() == [[10, 3, 0], [20, 4, 0]]
    assert found.dtype == np.uint64

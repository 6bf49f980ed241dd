"""NIXL where it is not, and what is refused before it is asked; the rest is conformance's."""

from __future__ import annotations

import base64
import sys
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import nixl, peers
from daemons.transfer.backend import Copy, PeerGone, Region, WriteCut
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


@dataclass
class Sending:
    """In place of an agent that sends: its transfers end as it is told."""

    name: str
    released: list[str]
    state: str = "ERR"
    trouble: Exception | None = None

    def register_memory(self, rows: list[Any], kind: str) -> None:
        """Nothing."""

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        return metadata

    def get_xfer_descs(self, rows: Any, kind: str) -> Any:
        return rows

    def initialize_xfer(self, verb: str, here: Any, there: Any, remote: str) -> str:
        return "handle"

    def transfer(self, handle: str) -> str:
        if self.trouble is not None:
            raise self.trouble
        return self.state

    def release_xfer_handle(self, handle: str) -> None:
        self.released.append(handle)
        if self.state != "DONE":
            raise RuntimeError("it is not complete")


@dataclass
class Made:
    """A backend, what became of its agents, and which handles were released."""

    how: dict[str, Any]
    agents: list[weakref.ref[Sending]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def backend(self) -> nixl.Nixl:
        module = SimpleNamespace(nixl_agent=self.agent, nixl_agent_config=lambda backends: None)
        one = nixl.Nixl(module, TransferConfig(backend="nixl"))
        one.register([Region(4096, 64)])
        return one

    def agent(self, name: str, config: object) -> Sending:
        one = Sending(name, self.released, **self.how)
        self.agents.append(weakref.ref(one))
        return one


@pytest.mark.parametrize("trouble", [None, RuntimeError("what?")])
def test_while_the_caller_has_what_was_raised_the_agent_is_gone(trouble: Exception | None) -> None:
    made = Made({"trouble": trouble})
    one = made.backend()
    with pytest.raises(WriteCut) as raised:
        one.write(one.session, [Copy(4096, 1, 64)])
    receiver, sender = made.agents
    assert receiver() is not None
    assert sender() is None
    assert made.released == ["handle"]
    assert raised.value.__traceback__ is not None


@pytest.mark.parametrize(
    "verb", ["get_xfer_descs", "initialize_xfer", "transfer", "check_xfer_state"]
)
def test_whatever_call_it_was_that_raised_the_agent_is_gone(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(agent: Sending, *words: object) -> Any:
        raise RuntimeError("what?")

    monkeypatch.setattr(Sending, verb, raises, raising=False)
    made = Made({"state": "PROC"})
    one = made.backend()
    with pytest.raises(WriteCut) as raised:
        one.write(one.session, [Copy(4096, 1, 64)])
    assert made.agents[1]() is None
    assert raised.value.__traceback__ is not None


def test_an_agent_that_something_still_holds_is_our_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, kept = Made({}), list[Sending]()
    one = made.backend()

    def transfer(agent: Sending, handle: str) -> str:
        kept.append(agent)
        return "ERR"

    monkeypatch.setattr(Sending, "transfer", transfer)
    with pytest.raises(AssertionError, match="still holds the agent"):
        one.write(one.session, [Copy(4096, 1, 64)])


def test_peers_that_are_written_to_no_more_are_forgotten() -> None:
    made = Made({"state": "DONE"})
    one = made.backend()
    names = [f"decode {number}".encode() for number in range(peers.LIMIT + 3)]
    sessions = [nixl.HEAD + base64.urlsafe_b64encode(name).decode().rstrip("=") for name in names]
    for session in sessions:
        one.write(session, [Copy(4096, 1, 64)])
        one.write(sessions[0], [Copy(4096, 1, 64)])
    assert len([agent for agent in made.agents if agent() is not None]) == 1 + peers.LIMIT
    assert one.transport_to(sessions[0]) != ""
    assert one.transport_to(sessions[1]) == ""


@dataclass
class Link:
    """The clock, and a peer to which bytes go one request after the other."""

    bytes_per_s: float
    now: float = 0.0
    sent: list[int] = field(default_factory=list)  # bytes of each request that was posted
    most: int = 0  # requests that were under way together
    ready_s: list[float] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    refused: int = -1  # the request that cannot be made
    made: int = 0

    def sleep(self, time_s: float) -> None:
        self.now += time_s

    def monotonic(self) -> float:
        return self.now


@dataclass
class Slow:
    """In place of an agent that sends over a link; a handle is the number of a request."""

    link: Link
    sizes: list[int] = field(default_factory=list)

    def register_memory(self, rows: list[Any], kind: str) -> None:
        """Nothing."""

    def get_agent_metadata(self) -> bytes:
        return b"peer"

    def add_remote_agent(self, metadata: bytes) -> bytes:
        return metadata

    def get_xfer_descs(self, rows: Any, kind: str) -> Any:
        return rows

    def initialize_xfer(self, verb: str, here: Any, there: Any, remote: str) -> int:
        if len(self.sizes) == self.link.refused:
            raise RuntimeError("not the peer's")
        assert here[:, 1].tolist() == there[:, 1].tolist()
        self.sizes.append(int(here[:, 1].sum()))
        self.link.made += 1
        return len(self.sizes) - 1

    def transfer(self, handle: int) -> str:
        link = self.link
        assert handle == len(link.sent)
        link.sent.append(self.sizes[handle])
        before_s = max(link.now, link.ready_s[-1]) if link.ready_s else link.now
        took_s = self.sizes[handle] / link.bytes_per_s if link.bytes_per_s else float("inf")
        link.ready_s.append(before_s + took_s)
        link.most = max(link.most, sum(ready_s > link.now for ready_s in link.ready_s))
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        return "DONE" if self.link.ready_s[handle] <= self.link.now else "PROC"

    def release_xfer_handle(self, handle: int) -> None:
        self.link.released.append(handle)


SLICE_BYTES = 32 << 20
TIMEOUT_S = 5.0


def over(link: Link, monkeypatch: pytest.MonkeyPatch) -> nixl.Nixl:
    """A backend whose writes go over this link; its memory is ``SLICE_BYTES`` from 4096 on."""
    module = SimpleNamespace(
        nixl_agent=lambda name, config: Slow(link), nixl_agent_config=lambda backends: None
    )
    monkeypatch.setattr(nixl, "time", link)
    one = nixl.Nixl(module, TransferConfig(backend="nixl", write_timeout_s=TIMEOUT_S))
    one.register([Region(4096, SLICE_BYTES)])
    return one


def test_a_write_that_goes_on_may_last_much_longer_than_the_time_without_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link(nixl.PIECE_BYTES / (0.9 * TIMEOUT_S))
    one = over(link, monkeypatch)
    one.write(one.session, [Copy(4096, 4096, SLICE_BYTES)])
    assert sum(link.sent) == SLICE_BYTES
    assert link.now > 5 * TIMEOUT_S
    assert max(link.sent) <= nixl.PIECE_BYTES
    assert link.most == nixl.PIECES
    assert sorted(link.released) == list(range(link.made))


def test_a_write_of_which_nothing_arrives_is_cut_after_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link(0)
    one = over(link, monkeypatch)
    with pytest.raises(WriteCut, match=r"no progress for 5\.0 s") as raised:
        one.write(one.session, [Copy(4096, 4096, SLICE_BYTES)])
    assert not raised.value.settled
    assert link.now == pytest.approx(TIMEOUT_S, abs=0.1)
    assert len(link.sent) == nixl.PIECES
    assert sorted(link.released) == list(range(link.made))


def test_where_a_later_request_is_refused_nothing_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link(1e9, refused=6)
    one = over(link, monkeypatch)
    with pytest.raises(WriteCut, match="not the peer's") as raised:
        one.write(one.session, [Copy(4096, 4096, SLICE_BYTES)])
    assert raised.value.settled
    assert link.sent == []
    assert sorted(link.released) == list(range(6))

"""Which way a peer is written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from structlog.testing import capture_logs

from daemons.cluster.errors import OperatorError
from daemons.transfer import auto, cma, mooncake, notice, other_memory
from daemons.transfer.auto import Auto
from daemons.transfer.backend import Copies, Copy, PeerGone, Region
from daemons.transfer.cma import Cma
from daemons.transfer.config import TransferConfig


@dataclass
class Far:
    """In place of Mooncake: remembers whom it was asked to write to."""

    session: str = "10.0.0.1:15001"
    transport: str = "tcp"
    gone: bool = False
    asked: list[str] = field(default_factory=list)
    registered: list[Region] = field(default_factory=list)

    def transport_to(self, peer: str) -> str:
        return self.transport

    def register(self, regions: Sequence[Region]) -> None:
        self.registered += regions

    def write(self, peer: str, copies: Copies) -> None:
        self.asked.append(peer)
        if self.gone:
            raise PeerGone("nobody")

    def close(self) -> None: ...


@pytest.fixture
def both() -> Iterator[tuple[Auto, Auto]]:
    pair = Auto(Cma(), Far()), Auto(Cma(), Far("10.0.0.1:15002"))
    yield pair
    for one in pair:
        one.close()


def region(array: np.ndarray) -> Region:
    return Region(array.ctypes.data, len(array))


def test_a_neighbour_is_written_to_by_cma(both: tuple[Auto, Auto]) -> None:
    sender, receiver = both
    source, target = np.ones(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    sender.register([region(source)])
    receiver.register([region(target)])
    sender.write(receiver.session, [Copy(source.ctypes.data, target.ctypes.data, 64)])
    assert target.all()
    assert sender.transport_to(receiver.session) == "cma"
    assert sender._far.asked == []  # type: ignore[attr-defined]


def of_host(host: str, pid: int = 1) -> str:
    """Return the session of a process that is not there."""
    return f"mooncake=10.0.0.2:15001,cma=cma2:{host}:{pid}:1:10:" + "00" * 16


def elsewhere() -> str:
    """Return another PID namespace of this host."""
    return notice.this_host().partition(".")[0] + ".1"


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ("10.0.0.2:15001", "it offers none"),
        ("mooncake=10.0.0.2:15001", "it offers none"),
        (of_host("elsewhere"), "it runs on another host"),
        (of_host(elsewhere()), "it runs in another PID namespace of this host"),
    ],
)
def test_a_peer_that_cma_does_not_reach_is_written_to_by_mooncake_and_it_is_told_why(
    both: tuple[Auto, Auto], session: str, why: str
) -> None:
    sender, _ = both
    sender.write(session, [Copy(1, 1, 1)])
    assert sender._far.asked == [session]  # type: ignore[attr-defined]
    assert sender.transport_to(session) == f"tcp (not cma: {why})"


def test_a_choice_is_one_line_in_the_log_and_a_warning_where_bytes_leave_their_host(
    both: tuple[Auto, Auto],
) -> None:
    sender, receiver = both
    source, target = np.ones(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    sender.register([region(source)])
    receiver.register([region(target)])
    near, far, beside = receiver.session, of_host("elsewhere"), of_host(elsewhere())
    with capture_logs() as lines:
        for _ in range(2):
            for peer in (near, far, beside, sender.session):
                sender.write(peer, [])
    assert [(line["event"], line["log_level"], line["transport"]) for line in lines] == [
        ("way.chosen", "info", "cma"),
        ("way.chosen", "info", "tcp"),
        ("way.chosen", "warning", "tcp"),
    ]
    assert lines[0]["peer"] == "10.0.0.1:15002"
    assert "not_cma" not in lines[0]
    assert "PID namespace" in lines[2]["not_cma"]


def test_what_the_kernel_says_is_the_reason(
    both: tuple[Auto, Auto], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int, address: int, length: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")  # as under ptrace_scope or seccomp

    sender, receiver = both
    target = np.zeros(64, dtype=np.uint8)
    receiver.register([region(target)])
    monkeypatch.setattr(other_memory, "read", refused)
    with capture_logs() as lines:
        sender.write(receiver.session, [Copy(1, 1, 1)])
    assert sender.transport_to(receiver.session).endswith("Operation not permitted)")
    assert lines[0]["log_level"] == "warning"


def test_a_peer_that_is_gone_is_looked_at_anew_and_told_of_where_something_is_new(
    both: tuple[Auto, Auto],
) -> None:
    sender, _ = both
    far = sender._far
    far.gone = True  # type: ignore[attr-defined]
    peer = of_host("elsewhere")
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(PeerGone):
                sender.write(peer, [Copy(1, 1, 1)])
            assert sender.transport_to(peer) == ""
    assert len(lines) == 1
    sender._near.close()  # type: ignore[union-attr]
    with capture_logs() as lines, pytest.raises(PeerGone):
        sender.write(peer, [Copy(1, 1, 1)])
    assert [line["not_cma"] for line in lines] == ["closed here"]


def test_where_cma_does_not_work_at_all_mooncake_is_alone_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unusable(config: TransferConfig, host: str) -> Cma:
        raise OperatorError("no memory here", "none")

    monkeypatch.setattr(cma, "create", unusable)
    monkeypatch.setattr(mooncake, "create", lambda config, host: Far())
    one = auto.create(TransferConfig(), "10.0.0.1")
    assert one.session == "mooncake=10.0.0.1:15001"
    assert one.transport == "tcp (not cma: no memory here)"
    one.write("mooncake=10.0.0.2:15001", [Copy(1, 1, 1)])
    assert one.transport_to("mooncake=10.0.0.2:15001") == "tcp (not cma: no memory here)"


def test_a_peer_that_has_ended_on_this_host_is_not_looked_for_over_the_network(
    both: tuple[Auto, Auto],
) -> None:
    sender, _ = both
    peer = of_host(notice.this_host(), 2**30)
    with capture_logs() as lines, pytest.raises(PeerGone, match="No such process"):
        sender.write(peer, [Copy(1, 1, 1)])
    assert lines == []
    assert sender.transport_to(peer) == ""
    assert sender._far.asked == []  # type: ignore[attr-defined]


def test_a_peer_with_no_part_for_us_is_gone(both: tuple[Auto, Auto]) -> None:
    with pytest.raises(PeerGone, match="no part"):
        both[0].write("nixl=abc", [Copy(1, 1, 1)])


def test_our_own_session_is_written_to_over_every_way(both: tuple[Auto, Auto]) -> None:
    one, _ = both
    array = np.zeros(64, dtype=np.uint8)
    array[:32] = 1
    one.register([region(array)])
    one.write(one.session, [Copy(array.ctypes.data, array.ctypes.data + 32, 32)])
    assert array.all()
    assert one._far.asked == [one.session]  # type: ignore[attr-defined]


def test_memory_of_a_gpu_leaves_mooncake_alone() -> None:
    one = Auto(Cma(), Far())
    assert one.transport == "shm or cma or tcp"
    one.register([Region(4096, 4096)])  # no memory of the host
    assert one.session == "mooncake=10.0.0.1:15001"
    assert one.transport.startswith("tcp (not cma: memory at 0x1000 is not the host's")
    one.close()

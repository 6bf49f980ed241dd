"""Which way a peer is written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from daemons.transfer.auto import Auto
from daemons.transfer.backend import Copies, Copy, PeerGone, Region
from daemons.transfer.cma import Cma


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


@pytest.mark.parametrize(
    "session",
    [
        "10.0.0.2:15001",
        "mooncake=10.0.0.2:15001",
        "mooncake=10.0.0.2:15001,cma=cma2:elsewhere:1:1:10:" + "00" * 16,
    ],
)
def test_a_peer_that_cma_does_not_reach_is_written_to_by_mooncake(
    both: tuple[Auto, Auto], session: str
) -> None:
    sender, _ = both
    sender.write(session, [Copy(1, 1, 1)])
    assert sender._far.asked == [session]  # type: ignore[attr-defined]
    assert sender.transport_to(session) == "tcp"


def test_a_peer_that_is_gone_is_looked_at_anew(both: tuple[Auto, Auto]) -> None:
    sender, _ = both
    far = sender._far
    far.gone = True  # type: ignore[attr-defined]
    with pytest.raises(PeerGone):
        sender.write("10.0.0.2:15001", [Copy(1, 1, 1)])
    assert sender.transport_to("10.0.0.2:15001") == ""


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
    assert one.transport == "tcp"
    one.close()

"""The ways to the peers of one rank."""

from __future__ import annotations

from daemons.protocol.ids import PeerId
from daemons.runtime.commands import Connect, Disconnect, Probe, SendHeartbeat
from daemons.runtime.liveness import Liveness
from daemons.runtime.peers import Peers

P = PeerId("p0", 1)
CONNECT = [Connect(P, "h", 9), SendHeartbeat(P)]


def peers() -> Peers:
    return Peers(Liveness(heartbeat_s=1.0, timeout_s=5.0))


def test_a_new_peer_is_connected_and_greeted_once() -> None:
    ours = peers()
    assert ours.add(P, "h", 9, 0.0) == CONNECT
    assert ours.add(P, "h", 9, 1.0) == []
    assert ours.believed() == {"p0/0@1": "alive"}


def test_heartbeats_go_out_with_the_ticks() -> None:
    ours = peers()
    ours.add(P, "h", 9, 0.0)
    assert ours.tick(0.5) == ([], [])
    assert ours.tick(1.0) == ([SendHeartbeat(P)], [])


def test_a_silent_peer_is_told_once_and_knocked_at_every_second() -> None:
    ours = peers()
    ours.add(P, "h", 9, 0.0)
    commands, silent = ours.tick(5.0)
    assert silent == [P]
    assert commands == [SendHeartbeat(P), Probe(P, "h", 9)]
    assert ours.tick(5.5) == ([], [])
    assert ours.tick(6.0) == ([SendHeartbeat(P), Probe(P, "h", 9)], [])


def test_knocks_are_not_repeated_too_fast_and_not_sent_to_strangers() -> None:
    ours = peers()
    ours.add(P, "h", 9, 0.0)
    assert ours.knock(P, 2.0) == [Probe(P, "h", 9)]
    assert ours.knock(P, 2.9) == []
    assert ours.knock(P, 3.0) == [Probe(P, "h", 9)]
    assert ours.knock(PeerId("p1", 1), 3.0) == []


def test_a_buried_peer_is_disconnected_once_and_never_knocked_at_again() -> None:
    ours = peers()
    ours.add(P, "h", 9, 0.0)
    assert ours.bury(P) == [Disconnect(P)]
    assert ours.bury(P) == []
    assert ours.knock(P, 9.0) == []
    assert ours.tick(9.0) == ([], [])
    assert ours.believed() == {}


def test_a_forgotten_peer_is_not_expected_any_more_and_may_come_back() -> None:
    ours = peers()
    ours.add(P, "h", 9, 0.0)
    assert ours.forget(P) == [Disconnect(P)]
    assert ours.forget(P) == []
    assert ours.tick(99.0) == ([], [])
    assert ours.add(P, "h", 9, 100.0) == CONNECT

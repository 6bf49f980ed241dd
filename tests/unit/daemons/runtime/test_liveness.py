"""Silence is suspicion; only evidence is death."""

from __future__ import annotations

from daemons.protocol.ids import PeerId
from daemons.runtime.liveness import Life, Liveness

P1, P2, P3 = PeerId("p0", 1), PeerId("p0", 2), PeerId("p0", 3)
OTHER = PeerId("p1", 1)


def watched(*peers: PeerId) -> Liveness:
    liveness = Liveness(heartbeat_s=1.0, timeout_s=5.0)
    for peer in peers:
        liveness.watch(peer, 0.0)
    return liveness


def test_a_watched_peer_is_alive_and_an_unknown_one_is_not() -> None:
    liveness = watched(P1)
    assert liveness.life(P1) is Life.ALIVE
    assert liveness.life(P2) is Life.DEAD
    assert not liveness.is_buried(P2)


def test_a_silent_peer_becomes_suspect_once() -> None:
    liveness = watched(P1)
    assert liveness.fell_silent(4.9) == []
    assert liveness.fell_silent(5.0) == [P1]
    assert liveness.fell_silent(6.0) == []
    assert liveness.life(P1) is Life.SUSPECT


def test_a_suspect_that_is_heard_is_alive_again() -> None:
    liveness = watched(P1)
    liveness.fell_silent(5.0)
    assert liveness.heard(P1, 6.0)
    assert liveness.life(P1) is Life.ALIVE
    assert not liveness.heard(P1, 7.0)
    assert liveness.fell_silent(11.9) == []


def test_hearing_a_peer_that_nobody_watches_changes_nothing() -> None:
    liveness = watched()
    assert not liveness.heard(P1, 1.0)
    assert liveness.peers() == {}


def test_heartbeats_are_due_once_per_interval() -> None:
    liveness = watched(P1, OTHER)
    assert liveness.heartbeats_due(0.9) == []
    assert liveness.heartbeats_due(1.0) == [P1, OTHER]
    assert liveness.heartbeats_due(1.5) == []
    assert liveness.heartbeats_due(2.0) == [P1, OTHER]


def test_watching_again_does_not_hide_silence() -> None:
    liveness = watched(P1)
    liveness.watch(P1, 4.0)
    assert liveness.fell_silent(5.0) == [P1]


def test_a_buried_life_is_dead_and_gets_no_heartbeats() -> None:
    liveness = watched(P1)
    liveness.bury(P1)
    assert liveness.life(P1) is Life.DEAD
    assert liveness.is_buried(P1)
    assert liveness.heartbeats_due(10.0) == []


def test_a_newer_life_is_not_buried_with_the_old_one() -> None:
    liveness = watched(P1)
    liveness.bury(P1)
    assert not liveness.is_buried(P2)


def test_a_life_older_than_one_we_know_is_over_even_if_we_never_met_it() -> None:
    liveness = watched(P2)
    assert liveness.is_buried(P1)
    assert not liveness.is_buried(P2)
    liveness.bury(P3)
    assert liveness.is_buried(P2)


def test_other_lives_are_those_of_the_same_instance_and_rank_with_older_epochs() -> None:
    liveness = watched(P1, P2, P3, OTHER, PeerId("p0", 1, rank=1))
    assert liveness.others_of(P2) == [P1]
    assert liveness.others_of(P3) == [P1, P2]


def test_the_dead_that_are_remembered_are_bounded() -> None:
    liveness = Liveness(1.0, 5.0, remember_dead=2)
    dead = [PeerId(f"p{index}", 1) for index in range(3)]
    for peer in dead:
        liveness.bury(peer)
    assert [liveness.is_buried(peer) for peer in dead] == [False, True, True]


def test_the_newest_lives_of_no_more_than_so_many_names_are_remembered() -> None:
    liveness = Liveness(1.0, 5.0, remember_dead=2)
    for name in ("a", "b", "c"):
        liveness.watch(PeerId(name, 5), 0.0)
    assert liveness.is_buried(PeerId("c", 4))
    assert liveness.is_buried(PeerId("b", 4))
    assert not liveness.is_buried(PeerId("a", 4))

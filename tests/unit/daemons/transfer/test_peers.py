"""Who is kept, who ends, and that nobody ends under a write."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from daemons.transfer import peers
from daemons.transfer.peers import Peer, Peers


class Ends:
    """Remembers whose way was ended, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, peer: Peer[str]) -> None:
        assert peer.lock.locked()
        self.names.append(peer.session)
        peer.way = None


@pytest.fixture
def ends() -> Ends:
    return Ends()


def write(table: Peers[str], *sessions: str) -> None:
    for session in sessions:
        with table.held(session) as peer:
            peer.way = peer.way or f"way to {session}"


def test_a_peer_keeps_its_way_from_write_to_write(ends: Ends) -> None:
    table = Peers(ends)
    write(table, "a")
    with table.held("a") as peer:
        assert peer.way == "way to a"
    assert "a" in table
    assert ends.names == []


def test_a_peer_that_is_forgotten_ends_and_is_met_anew(ends: Ends) -> None:
    table = Peers(ends)
    write(table, "a")
    with table.held("a") as peer:
        table.forget(peer)
    assert ends.names == ["a"]
    assert "a" not in table
    with table.held("a") as other:
        assert other is not peer
        assert other.way is None


def test_one_without_a_way_has_nothing_to_end(ends: Ends) -> None:
    table = Peers(ends)
    with table.held("a") as peer:
        table.forget(peer)
    assert ends.names == []


def test_over_the_limit_the_one_unused_longest_ends(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LIMIT", 2)
    table = Peers(ends)
    write(table, "a", "b", "a", "c", "a", "d")
    assert ends.names == ["b", "c"]
    assert [peer.session for peer in table.all()] == ["a", "d"]


def test_unused_ones_end_when_a_new_peer_comes_and_not_before(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Peers(ends)
    write(table, "a", "b")
    monkeypatch.setattr(peers, "IDLE_S", -1.0)
    write(table, "b", "b")
    assert ends.names == []
    write(table, "c")
    assert ends.names == ["a", "b"]


def test_of_unused_ones_it_is_asked_whether_they_are_gone(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_gone(session: str) -> bool:
        asked.append(session)
        return session == "a"

    table = Peers(ends, is_gone)
    write(table, "a", "b")
    assert asked == []
    monkeypatch.setattr(peers, "PROBE_AFTER_S", -1.0)
    write(table, "c")
    assert asked == ["a", "b"]
    assert ends.names == ["a"]


def test_a_peer_that_is_being_written_to_does_not_end(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LIMIT", 1)
    table = Peers(ends)
    with table.held("a") as peer:
        peer.way = "way"
        write(table, "b")
        assert peer.way == "way"
    assert ends.names == []
    write(table, "c")
    assert ends.names == ["a", "b"]


def test_who_waited_for_a_peer_that_was_forgotten_gets_a_new_one(ends: Ends) -> None:
    table, waits, met = Peers[str](ends), Event(), list[Peer[str]]()

    class Told:
        """The lock of the first peer, which says that somebody waits for it."""

        def __init__(self, peer: Peer[str]) -> None:
            self._lock = peer.lock

        def __enter__(self) -> None:
            waits.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def second() -> None:
        with table.held("a") as peer:
            met.append(peer)

    with table.held("a") as first:
        first.lock = Told(first)  # type: ignore[assignment]
        thread = Thread(target=second)
        thread.start()
        assert waits.wait(10)
        table.forget(first)
    thread.join(10)
    assert len(met) == 1
    assert met[0] is not first


def test_close_gives_out_all_ways_and_no_write_begins_after_it(ends: Ends) -> None:
    table = Peers(ends)
    write(table, "a", "b")
    assert not table.closing.is_set()
    assert table.close() == ["way to a", "way to b"]
    assert table.closing.is_set()
    assert table.all() == []
    assert ends.names == []  # the caller's affair
    with pytest.raises(AssertionError, match="after close"), table.held("c"):
        pass
    assert table.close() == []

"""Rooms take turns, a room's writes do not overtake each other."""

from __future__ import annotations

from queue import SimpleQueue

from daemons.prefill.commands import WriteKV
from daemons.prefill.peer_lane import Carrying, PeerLane, Task
from daemons.protocol.ids import PeerId, RoomKey

D0 = PeerId("d0", 3)
ONE, TWO = RoomKey(1, 1), RoomKey(2, 1)
Said = SimpleQueue[object]


def write(key: RoomKey, page: int) -> WriteKV:
    return WriteKV(key, D0, (page,), (page,))


def lane(carrying: Carrying) -> tuple[PeerLane, Said]:
    said: Said = SimpleQueue()
    return PeerLane("test", carrying, said.put), said


def broken(task: Task, why: str) -> object:
    return (task.command.key, why)


def test_a_write_that_is_not_ready_lets_other_rooms_pass_but_not_its_own() -> None:
    ready: set[WriteKV] = set()
    first, own, other = write(ONE, 0), write(ONE, 1), write(TWO, 2)
    ready |= {own, other}
    busy, said = lane(Carrying(lambda t: t.command in ready, lambda t: t.command, broken))
    for command in (first, own, other):
        busy.submit(command)
    assert said.get(timeout=20) == other
    ready.add(first)
    busy.look()
    assert [said.get(timeout=20), said.get(timeout=20)] == [first, own]
    busy.close()


def test_a_write_is_carried_on_until_it_has_an_end() -> None:
    def advance(task: Task) -> object | None:
        task.layers += 1
        return task.layers if task.layers == 3 else None

    busy, said = lane(Carrying(lambda _: True, advance, broken))
    busy.submit(write(ONE, 0))
    assert said.get(timeout=20) == 3
    busy.close()


def test_what_is_raised_ends_the_write_and_the_lane_goes_on() -> None:
    def advance(task: Task) -> object | None:
        if task.command.key == ONE:
            raise RuntimeError("what?")
        return task.command.key

    busy, said = lane(Carrying(lambda _: True, advance, broken))
    busy.submit(write(ONE, 0))
    busy.submit(write(TWO, 0))
    assert said.get(timeout=20) == (ONE, "RuntimeError: what?")
    assert said.get(timeout=20) == TWO
    busy.close()

"""Rooms take turns, a room's writes do not overtake each other."""

from __future__ import annotations

import threading
from math import inf
from queue import SimpleQueue

from daemons.prefill.commands import WriteKV
from daemons.prefill.peer_lane import QUANTUM_BYTES, Carrying, PeerLane, Task
from daemons.protocol.ids import PeerId, RoomKey

D0 = PeerId("d0", 3)
ONE, TWO = RoomKey(1, 1), RoomKey(2, 1)
Said = SimpleQueue[object]


def write(key: RoomKey, page: int) -> WriteKV:
    return WriteKV(key, D0, (page,), (page,))


def lane(carrying: Carrying) -> tuple[PeerLane, Said]:
    said: Said = SimpleQueue()
    return PeerLane("test", carrying, said.put), said


def idle(task: Task) -> None:
    """Prepare nothing."""


def broken(task: Task, why: str) -> object:
    return (task.command.key, why)


def test_a_write_that_is_not_ready_lets_other_rooms_pass_but_not_its_own() -> None:
    ready: set[WriteKV] = set()
    first, own, other = write(ONE, 0), write(ONE, 1), write(TWO, 2)
    ready |= {own, other}
    busy, said = lane(Carrying(lambda t: t.command in ready, idle, lambda t: t.command, broken))
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

    busy, said = lane(Carrying(lambda _: True, idle, advance, broken))
    busy.submit(write(ONE, 0))
    assert said.get(timeout=20) == 3
    busy.close()


def test_what_is_raised_ends_the_write_and_the_lane_goes_on() -> None:
    def advance(task: Task) -> object | None:
        if task.command.key == ONE:
            raise RuntimeError("what?")
        return task.command.key

    busy, said = lane(Carrying(lambda _: True, idle, advance, broken))
    busy.submit(write(ONE, 0))
    busy.submit(write(TWO, 0))
    assert said.get(timeout=20) == (ONE, "RuntimeError: what?")
    assert said.get(timeout=20) == TWO
    busy.close()


def test_what_waits_is_prepared_once_and_after_what_can_be_served() -> None:
    order: list[str] = []
    both, ready, prepared = threading.Event(), threading.Event(), threading.Event()

    def is_ready(task: Task) -> bool:
        return task.command.key != ONE or ready.is_set()

    def prepare(task: Task) -> None:
        order.append(f"prepare {task.command.key.room}")
        prepared.set()
        raise RuntimeError("advance meets it again")

    def advance(task: Task) -> object:
        both.wait(20)
        order.append(f"advance {task.command.key.room}")
        return task.command.key

    busy, said = lane(Carrying(is_ready, prepare, advance, broken))
    for key in (RoomKey(3, 1), ONE, TWO):  # the first one holds the lane until all are here
        busy.submit(write(key, 0))
    both.set()
    assert prepared.wait(20)
    ready.set()
    assert [said.get(timeout=20) for _ in range(3)] == [RoomKey(3, 1), TWO, ONE]
    assert order == ["advance 3", "advance 2", "prepare 1", "advance 1"]
    busy.close()


class Gate:
    """Rooms of one write each, in slices; the order in which they were served is noted."""

    def __init__(self, slices: dict[RoomKey, int], slice_bytes: int) -> None:
        self.left = dict(slices)
        self.slice_bytes = slice_bytes
        self.order: list[RoomKey] = []
        self.open = threading.Event()

    def advance(self, task: Task) -> object | None:
        self.open.wait(20)
        key = task.command.key
        self.order.append(key)
        task.sent_bytes += self.slice_bytes
        self.left[key] -= 1
        return None if self.left[key] else key


def served(slices: dict[RoomKey, int], slice_bytes: int, by_s: dict[RoomKey, float]) -> list[int]:
    """Return the rooms in the order of their slices, all of them queued before the first ends."""
    first = RoomKey(99, 1)
    gate = Gate({first: 1, **slices}, slice_bytes)
    busy, said = lane(Carrying(lambda _: True, idle, gate.advance, broken))
    busy.submit(write(first, 0))
    for key in slices:
        busy.submit(WriteKV(key, D0, (1,), (1,), by_s=by_s.get(key, inf)))
    gate.open.set()
    for _ in range(len(slices) + 1):
        said.get(timeout=20)
    busy.close()
    return [key.room for key in gate.order if key != first]


def test_the_room_whose_client_waits_least_long_goes_first() -> None:
    by_s = {RoomKey(1, 1): 30.0, RoomKey(2, 1): 10.0, RoomKey(3, 1): 20.0}
    assert served(dict.fromkeys(by_s, 1), 1, by_s) == [2, 3, 1]


def test_a_huge_room_gives_way_after_a_quantum_however_early_its_time_ends() -> None:
    slices = {RoomKey(1, 1): 6, RoomKey(2, 1): 1, RoomKey(3, 1): 2}
    order = served(slices, QUANTUM_BYTES, {RoomKey(1, 1): 1.0})
    assert order == [1, 2, 3, 1, 3, 1, 1, 1, 1]


def test_a_room_that_comes_late_has_no_claim_on_what_others_had_before() -> None:
    old, new = RoomKey(1, 1), RoomKey(2, 1)
    gate = Gate({old: 6, new: 4}, QUANTUM_BYTES)
    gate.open.set()

    def advance(task: Task) -> object | None:
        if len(gate.order) == 2:  # the old room has its third slice now
            busy.submit(WriteKV(new, D0, (1,), (1,), by_s=1.0))
        return gate.advance(task)

    busy, said = lane(Carrying(lambda _: True, idle, advance, broken))
    busy.submit(write(old, 0))
    assert [said.get(timeout=20), said.get(timeout=20)] == [new, old]
    busy.close()
    assert [key.room for key in gate.order] == [1, 1, 1, 2, 2, 1, 2, 1, 2, 1]


def test_rooms_without_a_time_are_served_in_the_order_in_which_they_came() -> None:
    assert served({RoomKey(n, 1): 1 for n in (4, 2, 3)}, 1, {}) == [4, 2, 3]

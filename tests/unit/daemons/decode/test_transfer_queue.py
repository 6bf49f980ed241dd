"""Prefill knows where to write, and we wait."""

from __future__ import annotations

from daemons.decode.request import Request
from daemons.decode.transfer_queue import ASK_S, TransferQueue
from daemons.protocol.status import Status
from tests.support.cores import P_NEXT, P, key, progress, submit


def queue(*rooms: int) -> TransferQueue:
    transfer = TransferQueue()
    for room in rooms:
        transfer.rooms[key(room)] = Request(submit(room), key(room), 0.0, 0.0, 2, P, [0, 1], 0)
    return transfer


def test_only_a_rooms_own_writer_speaks_for_it() -> None:
    transfer = queue(1)
    assert transfer.of(progress(Status.TRANSFERRING)) is transfer.rooms[key(1)]
    assert transfer.of(progress(Status.TRANSFERRING, sender=P_NEXT)) is None
    assert transfer.of(progress(Status.TRANSFERRING, room=2)) is None


def test_a_room_is_asked_about_less_and_less_often_until_something_is_heard() -> None:
    transfer = queue(1)
    asked = [now for now in range(31) if transfer.unheard(float(now))]
    assert asked == [ASK_S, 3 * ASK_S, 7 * ASK_S, 15 * ASK_S]
    transfer.advance(transfer.rooms[key(1)], progress(Status.WAITING_FOR_INPUT), 31.0)
    assert transfer.unheard(31.0 + ASK_S) == [transfer.rooms[key(1)]]


def test_a_room_whose_success_was_heard_is_not_asked_about() -> None:
    transfer = queue(1)
    transfer.advance(transfer.rooms[key(1)], progress(Status.SUCCESS), 0.0)
    assert transfer.unheard(99.0) == []


def test_progress_moves_forward_only() -> None:
    transfer = queue(1)
    request = transfer.rooms[key(1)]
    transfer.advance(request, progress(Status.TRANSFERRING, sent_bytes=9), 1.0)
    transfer.advance(request, progress(Status.WAITING_FOR_INPUT, sent_bytes=3), 2.0)
    assert (request.status, request.sent_bytes) == (Status.TRANSFERRING, 9)
    transfer.advance(request, progress(Status.FAILED), 3.0)
    transfer.advance(request, progress(Status.SUCCESS), 4.0)
    assert request.status is Status.FAILED


def test_bytes_of_one_room_are_progress_of_those_in_the_same_lane() -> None:
    transfer = queue(1, 2, 3)
    transfer.rooms[key(2)].status = Status.TRANSFERRING
    transfer.advance(transfer.rooms[key(1)], progress(Status.TRANSFERRING), 9.0)
    assert [transfer.rooms[key(room)].since_s for room in (1, 2, 3)] == [9.0, 9.0, 0.0]

"""What the prefill core says while it handles one event."""

from __future__ import annotations

import pytest

from daemons.prefill.outbox import Outbox
from daemons.prefill.request import Request
from daemons.protocol.generate import FinishReason, Sampling, TokenOut
from daemons.protocol.handshake import AbortAnswer, Fence, Progress
from daemons.protocol.status import Status
from daemons.runtime.commands import Log, Send, Tell
from tests.support.cores import CANCELLED, D, P, abort, destination, key, submit


def test_commands_come_out_in_order_and_once() -> None:
    out = Outbox(P)
    out.log("peer.died", peer="d0")
    out.tell_failure(key(), CANCELLED)
    first, second = out.take()
    assert isinstance(first, Log)
    assert isinstance(second, Tell)
    assert out.take() == []


def test_progress_is_told_only_to_a_decode_that_is_known() -> None:
    out = Outbox(P)
    request = Request(submit(), key(), 0.0, 0.0)
    out.progress(request, Status.WAITING_FOR_INPUT)
    assert out.take() == []
    request.destination = destination()
    request.sent_bytes = 5
    out.progress(request, Status.TRANSFERRING)
    message = Progress(P, D.epoch, 1, 1, Status.TRANSFERRING, 5)
    assert out.take() == [Send(D, message)]


def test_a_final_word_is_success_or_failed_with_its_fence() -> None:
    out = Outbox(P)
    out.final(D, key(), None, Fence.CLEAN, 9)
    out.final(D, key(), CANCELLED, Fence.CUT)
    good, bad = (send.message for send in out.take() if isinstance(send, Send))
    assert good == Progress(P, D.epoch, 1, 1, Status.SUCCESS, 9)
    assert bad == Progress(P, D.epoch, 1, 1, Status.FAILED, 0, CANCELLED, Fence.CUT)


def test_a_refusal_promises_that_nothing_was_written() -> None:
    out = Outbox(P)
    out.refuse(destination(), CANCELLED)
    message = Progress(P, D.epoch, 1, 1, Status.FAILED, 0, CANCELLED, Fence.CLEAN)
    assert out.take() == [Send(D, message)]


def test_an_abort_is_answered_to_its_sender() -> None:
    out = Outbox(P)
    out.answer(abort(), Fence.CUT)
    assert out.take() == [Send(D, AbortAnswer(P, D.epoch, 1, 1, Fence.CUT))]


def told(out: Outbox) -> list[tuple[tuple[int, ...], FinishReason | None, int | None]]:
    outputs = [output for tell in out.take() if isinstance(tell, Tell) for output in tell.outputs]
    return [(tuple(t.id for t in o.tokens), o.finish, o.finish_token) for o in outputs]


@pytest.mark.parametrize(
    ("token", "limit", "at_once", "at_last"),
    [
        (1, 9, [((1,), None, None)], [((), FinishReason.LENGTH, None)]),
        (2, 9, [], [((2,), FinishReason.STOP, 2)]),
        (1, 1, [], [((1,), FinishReason.LENGTH, None)]),
    ],
    ids=["goes on", "ends the text", "is all"],
)
def test_the_first_token_is_told_at_once_unless_it_is_the_last(
    token: int, limit: int, at_once: object, at_last: object
) -> None:
    out = Outbox(P)
    sampling = Sampling(max_tokens=limit, eos_token_ids=(2,))
    request = Request(submit(sampling=sampling), key(), 0.0, 0.0, first=TokenOut(token))
    out.tell_first(request)
    assert told(out) == at_once
    out.tell_end(request)
    assert told(out) == at_last


def test_an_end_is_counted_with_its_cause() -> None:
    out = Outbox(P)
    request = Request(submit(), key(), 1.0, 1.0)
    out.close(request, None, 3.0)
    out.close(request, CANCELLED, 3.0)
    assert out.counters == {"rooms_done": 1, "rooms_failed": 1, "failed:client.cancelled": 1}
    (line, _) = out.take()
    assert isinstance(line, Log)
    assert dict(line.facts)["took_s"] == 2.0

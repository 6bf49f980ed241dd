"""What the decode core says while it handles one event."""

from __future__ import annotations

from daemons.decode.outbox import Outbox
from daemons.decode.request import Request
from daemons.protocol.generate import FinishReason, TokenOut, prompt_digest
from daemons.protocol.handshake import Abort, Destination
from daemons.runtime.commands import Log, Send, Tell
from tests.support.cores import CANCELLED, D, P, key, submit


def test_all_outputs_of_an_event_are_told_together_and_last() -> None:
    out = Outbox(D)
    out.tell_token(key(1), TokenOut(5), None, None)
    out.log("peer.died", peer="p0")
    out.tell_failure(key(2), CANCELLED)
    log, tell = out.take()
    assert isinstance(log, Log)
    assert isinstance(tell, Tell)
    assert [output.room for output in tell.outputs] == [1, 2]
    assert out.take() == []


def test_a_token_may_be_the_last() -> None:
    out = Outbox(D)
    out.tell_token(key(), TokenOut(2), FinishReason.STOP, 2, cached_tokens=4)
    (tell,) = out.take()
    assert isinstance(tell, Tell)
    (output,) = tell.outputs
    assert (output.finish, output.finish_token, output.cached_tokens) == (FinishReason.STOP, 2, 4)


def test_a_destination_names_pages_row_and_the_life_it_is_for() -> None:
    out = Outbox(D)
    request = Request(submit(tokens=6), key(), 0.0, 0.0, 3, P, [4, 5], row=1)
    out.destination(request, 4)
    assert out.take() == [
        Send(P, Destination(D, P.epoch, 1, 1, (4, 5), 1, 6, prompt_digest(range(1, 7))))
    ]


def test_an_abort_carries_the_first_cause() -> None:
    out = Outbox(D)
    out.abort(P, key(), CANCELLED)
    assert out.take() == [Send(P, Abort(D, P.epoch, 1, 1, CANCELLED))]


def test_an_end_is_counted_with_its_cause() -> None:
    out = Outbox(D)
    request = Request(submit(), key(), 1.0, 1.0, 3, output=[7, 8])
    out.close(request, None, 3.5)
    out.close(request, CANCELLED, 3.5)
    assert out.counters == {"rooms_done": 1, "rooms_failed": 1, "failed:client.cancelled": 1}
    (line, _) = out.take()
    assert isinstance(line, Log)
    facts = dict(line.facts)
    assert (facts["took_s"], facts["output_tokens"]) == (2.5, 2)

"""The prefills that rooms name: looked up, checked, told of our buffers, then ready."""

from __future__ import annotations

import msgspec
import pytest

from daemons.decode.prefills import ANSWER_S, REFUSAL_S, RETRY_S, Prefills, Step
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import LookUp, RouteFailed
from daemons.protocol.handshake import RegisterBuffers
from daemons.runtime.commands import Connect, Disconnect
from daemons.runtime.liveness import Liveness
from daemons.runtime.peers import Peers
from tests.support.cores import (
    FINGERPRINT,
    P_NEXT,
    D,
    P,
    answer,
    buffers,
    of,
    route,
    said,
)

MISSING = Failure(Cause.BOOTSTRAP_UNKNOWN, "prealloc", "p0", "never heard of it")
LOOK = [LookUp("p0")]


def prefills() -> Prefills:
    return Prefills(buffers(D), Peers(Liveness(1.0, 5.0)))


def registering() -> Prefills:
    ours = prefills()
    ours.need("p0", 0.0)
    ours.found(route(), 0.0)
    return ours


def ready() -> Prefills:
    ours = registering()
    ours.answered(answer(), 0.0)
    return ours


def test_an_instance_is_looked_up_once() -> None:
    ours = prefills()
    assert ours.need("p0", 0.0) == LOOK
    assert ours.need("p0", 0.1) == []


def test_a_route_is_registered_with_the_life_it_names() -> None:
    ours = prefills()
    ours.need("p0", 0.0)
    commands = ours.found(route(), 0.1)
    assert of(commands, Connect) == [Connect(P, "p.host", 8000)]
    (registration,) = said(commands, RegisterBuffers)
    assert registration == buffers(D, to_epoch=P.epoch)
    assert ours.ready("p0") is None


def test_an_answer_makes_it_ready() -> None:
    assert ready().ready("p0") == P


def test_a_registration_is_repeated_until_it_is_answered() -> None:
    ours = registering()
    assert ours.tick(RETRY_S - 0.1) == []
    assert len(ours.tick(RETRY_S)) == 1
    assert ours.tick(RETRY_S + 0.1) == []
    ours.answered(answer(), RETRY_S)
    assert ours.tick(RETRY_S + 3) == []


def test_a_registration_is_not_repeated_for_ever() -> None:
    assert registering().tick(ANSWER_S) == []


def test_a_registration_that_nobody_answers_is_looked_up_again_in_the_end() -> None:
    ours = registering()
    now, looked = 0.0, []
    while now < ANSWER_S + 1.0 and not looked:
        now += 0.25
        ours.peers.liveness.heard(P, now)
        ours.tick(now)
        looked = ours.need("p0", now)
    assert looked == LOOK
    assert now == ANSWER_S


def test_a_registration_with_a_silent_life_is_looked_up_again_soon() -> None:
    ours = registering()
    ours.peers.tick(5.0)
    ours.tick(5.0)
    assert ours.need("p0", 5.0) == LOOK


def test_a_look_up_that_is_never_answered_is_repeated() -> None:
    ours = prefills()
    ours.need("p0", 0.0)
    assert ours.need("p0", ANSWER_S - 0.1) == []
    assert ours.need("p0", ANSWER_S) == LOOK


def test_a_look_up_that_fails_is_repeated_and_its_reason_kept() -> None:
    ours = prefills()
    ours.need("p0", 0.0)
    ours.not_found(RouteFailed("p0", MISSING), 1.0)
    assert ours.need("p0", 1.0 + RETRY_S - 0.1) == []
    assert ours.need("p0", 1.0 + RETRY_S) == LOOK
    assert ours.last_failure("p0") == MISSING


def test_an_answer_to_no_question_is_let_be() -> None:
    ours = prefills()
    assert ours.found(route(), 0.0) == []
    ours.not_found(RouteFailed("p0", MISSING), 0.0)
    ours.answered(answer(), 0.0)
    assert ours.known == {}
    ours = ready()
    assert ours.found(route(P_NEXT), 1.0) == []
    assert ours.ready("p0") == P


def test_a_refusal_is_believed_for_a_while() -> None:
    ours = registering()
    ours.answered(answer(refused="model: ours 'a', theirs 'b'"), 1.0)
    failure = ours.refusal("p0")
    assert failure is not None
    assert (failure.cause, failure.detail) == (
        Cause.HANDSHAKE_REFUSED,
        "model: ours 'a', theirs 'b'",
    )
    assert ours.need("p0", 1.0 + REFUSAL_S - 0.1) == []
    assert ours.need("p0", 1.0 + REFUSAL_S) == LOOK
    assert ours.refusal("p0") is None


def test_a_mismatch_is_refused_with_both_values() -> None:
    ours = prefills()
    ours.need("p0", 0.0)
    other = msgspec.structs.replace(FINGERPRINT, page_size=64)
    assert ours.found(route(fingerprint=other), 0.0) == []
    failure = ours.refusal("p0")
    assert failure is not None
    assert (failure.cause, failure.detail) == (Cause.PAIR_MISMATCH, "page_size: ours 4, theirs 64")


def test_an_answer_of_another_life_is_let_be() -> None:
    ours = registering()
    ours.answered(answer(P_NEXT), 0.0)
    assert ours.known["p0"].step is Step.REGISTERING


def test_a_silent_prefill_is_not_ready_and_is_when_it_is_heard_again() -> None:
    ours = ready()
    ours.peers.tick(5.0)
    assert ours.ready("p0") is None
    ours.peers.liveness.heard(P, 5.5)
    assert ours.ready("p0") == P


def test_a_silent_prefill_that_is_needed_is_looked_up() -> None:
    ours = ready()
    ours.peers.tick(5.0)
    assert ours.need("p0", 5.0) == LOOK
    commands = ours.found(route(P_NEXT), 5.1)
    assert of(commands, Connect) == [Connect(P_NEXT, "p.host", 8000)]


def test_a_buried_life_is_forgotten_and_not_called_again() -> None:
    ours = ready()
    assert ours.bury(P) == [Disconnect(P)]
    assert ours.ready("p0") is None
    assert ours.need("p0", 1.0) == LOOK
    assert ours.found(route(P), 1.0) == []
    failure = ours.last_failure("p0")
    assert failure is not None
    assert failure.cause is Cause.BOOTSTRAP_UNKNOWN


def test_a_life_older_than_a_known_one_is_not_called() -> None:
    ours = prefills()
    ours.peers.liveness.watch(P_NEXT, 0.0)
    ours.need("p0", 0.0)
    assert ours.found(route(P), 0.0) == []


@pytest.mark.parametrize("instance", ["p1", "p2"])
def test_nothing_is_known_of_an_instance_that_nobody_named(instance: str) -> None:
    ours = ready()
    assert ours.ready(instance) is None
    assert ours.refusal(instance) is None
    assert ours.last_failure(instance) is None

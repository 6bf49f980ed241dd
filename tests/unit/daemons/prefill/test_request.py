"""A room on the prefill side."""

from __future__ import annotations

from daemons.prefill.request import Request
from tests.support.cores import D, destination, key, submit


def test_a_request_knows_its_decode_once_the_destination_is_there() -> None:
    request = Request(submit(), key(), 5.0, 5.0)
    assert (request.peer, request.peer_name) == (None, "")
    request.destination = destination()
    assert (request.peer, request.peer_name) == (D, "d0")


def test_the_clients_patience_counts_from_the_request() -> None:
    request = Request(submit(timeout_s=3.0), key(), 5.0, 7.0)
    assert request.expires_s == 8.0


def test_the_prompt_is_the_requests() -> None:
    assert Request(submit(tokens=3), key(), 0.0, 0.0).prompt == (1, 2, 3)

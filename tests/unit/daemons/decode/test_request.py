"""A room on the decode side."""

from __future__ import annotations

from daemons.decode.request import Request
from tests.support.cores import key, submit


def request(**more: object) -> Request:
    return Request(submit(tokens=6, timeout_s=3.0), key(), 5.0, 7.0, 4, **more)  # type: ignore[arg-type]


def test_what_is_promised_is_what_was_not_taken_yet() -> None:
    assert request().promised == 4
    assert request(pages=(1, 2, 3)).promised == 1


def test_the_newest_tokens_kv_goes_behind_all_before_it() -> None:
    assert request(output=[9]).position == 6
    assert request(output=[9, 9, 9]).position == 8


def test_the_clients_patience_counts_from_the_request() -> None:
    assert request().expires_s == 8.0

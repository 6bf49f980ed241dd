"""HTTP to the daemons."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from pdctl.client import (
    Refused,
    Unreachable,
    base_url,
    call,
    get_json,
    message_of,
    post_json,
    stream,
    together,
)
from tests.support.fake_fleet import FakeDaemon


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    running = FakeDaemon().start()
    yield running
    running.stop()


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert base_url("::1", 80) == "http://[::1]:80"
    assert base_url("127.0.0.1", 80) == "http://127.0.0.1:80"


def test_json_of_a_200_comes_back(daemon: FakeDaemon) -> None:
    daemon.routes["/a"] = 200, {"b": [1]}
    assert get_json(f"{base_url('127.0.0.1', daemon.port)}/a") == {"b": [1]}


def test_another_status_is_refused_with_the_daemons_words(daemon: FakeDaemon) -> None:
    daemon.routes["/a"] = 503, {"error": {"message": "no pair"}}
    with pytest.raises(Refused, match="no pair") as caught:
        get_json(f"{base_url('127.0.0.1', daemon.port)}/a")
    assert caught.value.status == 503


def test_any_status_is_an_answer_of_call(daemon: FakeDaemon) -> None:
    daemon.routes["/a"] = 503, b"busy"
    answer = call("GET", f"{base_url('127.0.0.1', daemon.port)}/a")
    assert (answer.status, answer.body) == (503, b"busy")


def test_no_json_is_unreachable(daemon: FakeDaemon) -> None:
    daemon.routes["/a"] = 200, b"<html>"
    with pytest.raises(Unreachable, match="no JSON"):
        get_json(f"{base_url('127.0.0.1', daemon.port)}/a")


def test_a_post_carries_json(daemon: FakeDaemon) -> None:
    daemon.routes["/a"] = 200, {}
    post_json(f"{base_url('127.0.0.1', daemon.port)}/a", {"on": True})
    assert daemon.posted == [("/a", {"on": True})]


def test_a_closed_port_is_unreachable_and_says_which() -> None:
    with socket.socket() as bound:  # bound, so nobody else gets it; not listening, so it refuses
        bound.bind(("127.0.0.1", 0))
        url = base_url("127.0.0.1", bound.getsockname()[1])
        with pytest.raises(Unreachable, match=url):
            call("GET", f"{url}/health")


def test_a_silent_peer_is_unreachable_at_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = base_url("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(Unreachable, match="no answer in time"):
            call("GET", url, timeout_s=0.05)


def test_calls_together_give_results_and_troubles_by_name() -> None:
    def fails() -> int:
        raise Unreachable("gone")

    results = together({"a": lambda: 1, "b": fails})
    assert results["a"] == 1
    assert isinstance(results["b"], Unreachable)
    assert together({}) == {}


def test_events_of_a_stream_come_one_by_one_until_done(daemon: FakeDaemon) -> None:
    daemon.headers["X-PD-Room"] = "00abc"
    daemon.routes["/s"] = 200, b'data: {"n": 1}\n\n: comment\ndata: {"n": 2}\n\ndata: [DONE]\n\n'
    url = f"{base_url('127.0.0.1', daemon.port)}/s"
    seen = [(headers["x-pd-room"], event) for headers, event in stream(url, {}, idle_s=2)]
    assert seen == [("00abc", {"n": 1}), ("00abc", {"n": 2})]


def test_an_error_event_of_a_stream_is_refused_with_its_code(daemon: FakeDaemon) -> None:
    daemon.routes["/s"] = 200, b'data: {"error": {"message": "p0 died", "code": 502}}\n\n'
    with pytest.raises(Refused, match="p0 died") as caught:
        list(stream(f"{base_url('127.0.0.1', daemon.port)}/s", {}, idle_s=2))
    assert caught.value.status == 502


def test_a_stream_without_its_end_mark_has_broken_off(daemon: FakeDaemon) -> None:
    daemon.routes["/s"] = 200, b'data: {"n": 1}\n\n'
    with pytest.raises(Unreachable, match="broke off"):
        list(stream(f"{base_url('127.0.0.1', daemon.port)}/s", {}, idle_s=2))


def test_a_message_is_found_in_our_shape_and_in_others() -> None:
    assert message_of(b'{"error": {"message": "no"}}') == "no"
    assert message_of(b"plain") == "plain"
    assert message_of(b"[1]") == "[1]"


def test_how_long_a_call_took_is_told(daemon: FakeDaemon) -> None:
    daemon.routes["/a"] = 200, {}
    began = time.monotonic()
    answer = call("GET", f"{base_url('127.0.0.1', daemon.port)}/a")
    assert 0 < answer.took_s <= time.monotonic() - began


def test_a_token_is_shown_only_where_there_is_one(daemon: FakeDaemon) -> None:
    daemon.routes["/x"] = 200, {}
    shown: list[str | None] = []
    assert daemon.server is not None
    answering = daemon.server.RequestHandlerClass
    log = "log_message"
    setattr(answering, log, lambda self, *_: shown.append(self.headers.get("Authorization")))
    for token in (None, "t"):
        get_json(f"http://127.0.0.1:{daemon.port}/x", token=token)
        post_json(f"http://127.0.0.1:{daemon.port}/x", {}, token=token)
    assert shown == [None, None, "Bearer t", "Bearer t"]

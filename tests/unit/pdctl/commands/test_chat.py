"""A prompt in, tokens out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import pytest

from pdctl.errors import Exit
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]
PATH = "/v1/chat/completions"


def events(*texts: str) -> bytes:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    return b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks) + b"data: [DONE]\n\n"


@pytest.fixture
def talks(fleet: Fleet) -> Fleet:
    fleet.lb.routes[PATH] = 200, events("Par", "is.")
    fleet.lb.headers["X-PD-Room"] = "03ffd9979729a7"
    return fleet


def test_the_answer_goes_to_standard_output(talks: Fleet, pdctl: Pdctl) -> None:
    assert pdctl("chat", "Capital?", "-c", talks.config) == (Exit.OK, "Paris.\n", "")


def test_the_body_is_openais_and_streams(talks: Fleet, pdctl: Pdctl) -> None:
    pdctl(
        "chat", "Capital?", "-c", talks.config, "--system", "Be brief.", "--max-tokens", "5",
        "--temperature", "0",
    )  # fmt: skip
    ((path, body),) = talks.lb.posted
    assert path == PATH
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Capital?"},
    ]
    assert (body["stream"], body["max_tokens"], body["temperature"]) == (True, 5, 0.0)


def test_the_room_is_told_on_standard_error(talks: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("chat", "Capital?", "-c", talks.config, "--room")
    assert (said.out, said.err) == ("Paris.\n", "room 03ffd9979729a7\n")


def test_a_prompt_may_come_from_standard_input(
    talks: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert pdctl("chat", "-c", talks.config).code == Exit.OK
    assert talks.lb.posted[0][1]["messages"] == [{"role": "user", "content": "from a pipe"}]


def test_no_prompt_at_all_is_a_usage_error(
    talks: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert pdctl("chat", "-c", talks.config).code == Exit.USAGE


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes lines come from a terminal."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def type_in(*lines: str) -> None:
        coming: Iterator[str] = iter(lines)

        def answer(_: str) -> str:
            try:
                return next(coming)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("builtins.input", answer)

    return type_in


def test_a_conversation_remembers_what_was_said(
    talks: Fleet, pdctl: Pdctl, typed: Callable[..., None]
) -> None:
    typed("first", "second")
    assert pdctl("chat", "-c", talks.config).code == Exit.OK
    contents = [message["content"] for message in talks.lb.posted[1][1]["messages"]]
    assert contents == ["first", "Paris.", "second"]


def test_a_conversation_goes_on_after_a_failed_answer(
    talks: Fleet, pdctl: Pdctl, typed: Callable[..., None]
) -> None:
    answers = iter([(503, {"error": {"message": "no pair"}}), (200, events("ok"))])
    talks.lb.routes[PATH] = lambda _: next(answers)
    typed("first", "second", "")
    said = pdctl("chat", "-c", talks.config)
    assert said.code == Exit.OK
    assert "no pair" in said.err
    assert talks.lb.posted[1][1]["messages"] == [{"role": "user", "content": "second"}]


def test_a_failure_is_exit_1_with_its_cause(talks: Fleet, pdctl: Pdctl) -> None:
    talks.lb.routes[PATH] = 503, {"error": {"message": "lb.no_pair in dispatch"}}
    said = pdctl("chat", "hi", "-c", talks.config)
    assert said.code == Exit.FAILED
    assert "lb.no_pair in dispatch (503)" in said.err


def test_an_answer_that_breaks_off_is_not_called_whole(talks: Fleet, pdctl: Pdctl) -> None:
    talks.lb.routes[PATH] = 200, events("Par").replace(b"data: [DONE]\n\n", b"")
    said = pdctl("chat", "hi", "-c", talks.config)
    assert said.code == Exit.UNREACHABLE
    assert said.out == "Par\n"

"""Faults put in on purpose."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from pdctl.errors import Exit
from tests.support.fake_fleet import Fleet, Said

Pdctl = Callable[..., Said]


@pytest.fixture
def staging(fleet: Fleet) -> Fleet:
    fleet.config.write_text(fleet.config.read_text() + "chaos: true\n")
    fleet.d0.routes["/chaos"] = 200, {"armed": ["engine.raise x2"]}
    return fleet


def test_without_leave_in_the_file_nothing_is_asked(fleet: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("chaos", "d0", "engine.raise", "-c", fleet.config)
    assert said.code == Exit.CONFLICT
    assert "chaos: true" in said.err
    assert fleet.d0.posted == []


def test_a_fault_is_armed_with_all_that_was_said(staging: Fleet, pdctl: Pdctl) -> None:
    words = ("--room", "7f", "--times", "2", "--seconds", "1.5")
    said = pdctl("chaos", "d0", "engine.delay", *words, "-c", staging.config)
    assert said.code == Exit.OK
    assert "engine.raise x2" in said.err
    ((path, body),) = staging.d0.posted
    assert (path, body["fault"], body["room"]) == ("/chaos", "engine.delay", 0x7F)
    assert (body["times"], body["seconds"]) == (2, 1.5)


def test_list_shows_faults_and_what_is_armed(staging: Fleet, pdctl: Pdctl) -> None:
    said = pdctl("chaos", "d0", "--list", "-c", staging.config)
    assert said.code == Exit.OK
    assert "write.freeze" in said.err
    assert "engine.raise x2" in said.err


def test_clear_takes_them_out(
    staging: Fleet, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert staging.d0.server is not None
    answer = staging.d0.server.RequestHandlerClass
    assert issubclass(answer, BaseHTTPRequestHandler)
    monkeypatch.setattr(answer, "do_DELETE", answer.do_GET, raising=False)  # type: ignore[attr-defined]
    staging.d0.routes["/chaos"] = 200, {"armed": []}
    said = pdctl("chaos", "d0", "--clear", "-c", staging.config)
    assert (said.code, "no fault is armed" in said.err) == (Exit.OK, True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("d0",), Exit.USAGE),
        (("d0", "write.fail", "--list"), Exit.USAGE),
        (("d0", "write.burn"), Exit.NOT_FOUND),
        (("d0", "write.fail", "--room", "xyz"), Exit.USAGE),
        (("d0", "write.delay"), Exit.USAGE),
        (("d9", "write.fail"), Exit.NOT_FOUND),
    ],
)
def test_what_cannot_be_meant_is_told(
    words: tuple[str, ...], code: Exit, staging: Fleet, pdctl: Pdctl
) -> None:
    assert pdctl("chaos", *words, "-c", staging.config).code == code
    assert staging.d0.posted == []


def test_a_refusal_and_silence_have_their_codes(staging: Fleet, pdctl: Pdctl) -> None:
    staging.d0.routes["/chaos"] = 403, {"error": {"message": "faults are not allowed here"}}
    said = pdctl("chaos", "d0", "write.fail", "-c", staging.config)
    assert (said.code, "not allowed" in said.err) == (Exit.CONFLICT, True)
    staging.d0.stop()
    assert pdctl("chaos", "d0", "write.fail", "-c", staging.config).code == Exit.UNREACHABLE

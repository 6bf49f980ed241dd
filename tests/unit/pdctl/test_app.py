"""The verbs of pdctl."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fake_fleet import Said

VERBS = (
    "up",
    "down",
    "status",
    "rooms",
    "trace",
    "drain",
    "undrain",
    "logs",
    "chat",
    "doctor",
    "chaos",
    "bench",
    "config",
    "completion",
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_of_its_own(verb: str, pdctl: Callable[..., Said]) -> None:
    said = pdctl(verb, "--help")
    assert said.code == 0
    assert f"pdctl {verb}" in said.out


def test_help_lists_every_verb(pdctl: Callable[..., Said]) -> None:
    out = pdctl("--help").out
    assert [verb for verb in VERBS if f"│ {verb} " not in out] == []


@pytest.mark.parametrize("words", [("status",), ("rooms",), ("trace", "room"), ("doctor",)])
def test_what_shows_things_has_all_forms_of_output(
    words: tuple[str, ...], pdctl: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = pdctl(*words, "--help").out
    assert "table|wide|json|yaml|name" in out

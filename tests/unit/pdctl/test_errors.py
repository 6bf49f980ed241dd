"""Exit codes are part of the interface."""

from __future__ import annotations

from pdctl.errors import EXIT_CODES_HELP, CommandError, Exit


def test_exit_codes_never_change() -> None:
    assert [(code.name, code.value) for code in Exit] == [
        ("OK", 0),
        ("FAILED", 1),
        ("USAGE", 2),
        ("NOT_FOUND", 3),
        ("DEGRADED", 4),
        ("UNREACHABLE", 5),
        ("TIMEOUT", 6),
        ("CONFLICT", 7),
        ("BAD_CONFIG", 8),
    ]


def test_the_help_text_names_every_code() -> None:
    assert [code for code in Exit if f"{code.value} " not in EXIT_CODES_HELP] == []


def test_an_error_keeps_what_hint_and_code() -> None:
    error = CommandError("what", "hint", code=Exit.TIMEOUT)
    assert (error.what, error.hint, error.code, str(error)) == (
        "what",
        "hint",
        Exit.TIMEOUT,
        "what",
    )

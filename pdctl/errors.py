"""How pdctl ends: its exit codes, and the one exception that becomes two lines.

Every error is what went wrong and a hint what to do. Exit codes are part of the interface.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DEGRADED = 4
    UNREACHABLE = 5
    TIMEOUT = 6
    CONFLICT = 7
    BAD_CONFIG = 8


EXIT_CODES_HELP = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 degraded, 5 unreachable, 6 timeout, "
    "7 conflict or precondition, 8 invalid config."
)


class CommandError(Exception):
    """The verb cannot do what was asked; printed as two lines, what and hint."""

    def __init__(self, what: str, hint: str = "", *, code: Exit = Exit.FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.code = code

"""Words that a verb's options choose between, apart from the code that they choose."""

from __future__ import annotations

from enum import StrEnum


class Export(StrEnum):
    """Forms of ``trace room --export``."""

    PERFETTO = "perfetto"
    HTML = "html"

"""The compiled kernels for tests: built once where a compiler is at hand, else tests skip."""

from __future__ import annotations

import functools

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.native.abi import Library, Team
from daemons.engine.native.build import build, library_path


@functools.cache
def library() -> Library:
    """Return the kernels; skips where they cannot be built."""
    path = library_path()
    try:
        return Library(path if path.is_file() else build())
    except OperatorError as error:
        pytest.skip(f"{error.what}")


@functools.cache
def team(members: int) -> Team:
    """Return so many threads, the same in all tests."""
    return Team(library(), members)

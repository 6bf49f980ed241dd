"""The compiled kernels for tests: built once where a compiler is at hand, else tests skip."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from daemons.cluster.compiled import Compiled
from daemons.cluster.errors import OperatorError
from daemons.engine.native.abi import Library, Team
from daemons.engine.native.build import KERNELS


def built(compiled: Compiled) -> Path:
    """Return a library's path, building it at first; skips where it cannot be built."""
    path = compiled.path()
    try:
        return path if path.is_file() else compiled.build()
    except OperatorError as error:
        pytest.skip(f"{error.what}")


@functools.cache
def library() -> Library:
    """Return the kernels; skips where they cannot be built."""
    return Library(built(KERNELS))


@functools.cache
def team(members: int) -> Team:
    """Return so many threads, the same in all tests."""
    return Team(library(), members)

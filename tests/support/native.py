"""What we compile, for tests: built once where a compiler is at hand, else tests skip."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from daemons.cluster.compiled import Compiled
from daemons.cluster.errors import OperatorError
from daemons.engine.native.abi import Library, Team
from daemons.engine.native.build import KERNELS
from daemons.transfer.native.build import COPIER
from daemons.transfer.native.mover import Mover, mover


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


@functools.cache
def copier() -> Mover:
    """Return the copier of ``cma``, and let it be found; skips where it cannot be built."""
    path = built(COPIER)
    mover.cache_clear()
    found = mover()
    assert found is not None, f"{path} cannot be opened"
    return found

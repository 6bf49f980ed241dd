"""What a backend sets in the environment, for the libraries behind it, ends with its test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """So nixl/tcp leaves nixl the media that it had: UCX reads them anew for each agent."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)

"""Flags of every test run: ``--long`` for what CI leaves out, ``--address`` for live clusters."""

from __future__ import annotations

import pytest

from tests.support import cluster as support


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="every cell of the fault matrices")
    parser.addoption("--screens", action="store_true", help="write tests/unit/pdctl/screens anew")
    parser.addoption("--address", default=support.ADDRESS, help="where clusters live, e.g. ::1")


def pytest_configure(config: pytest.Config) -> None:
    support.ADDRESS = config.getoption("--address", default=support.ADDRESS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long", default=False):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]

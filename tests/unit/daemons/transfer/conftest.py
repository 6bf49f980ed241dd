"""Mooncake reads its settings once, so all tests of one run share them."""

from __future__ import annotations

from typing import Any

import pytest

from daemons.transfer.config import TransferConfig
from daemons.transfer.mooncake_env import load


@pytest.fixture(scope="session")
def config() -> TransferConfig:
    return TransferConfig(write_timeout_s=2)


@pytest.fixture(scope="session")
def module(config: TransferConfig) -> Any:
    return load(config, "127.0.0.1")

"""The ports of tests: tests/support/ports.py."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemons.transfer.mooncake_env import PORTS
from tests.support import ports

ROOT = Path(__file__).parents[2]


def test_a_port_is_given_once_and_is_none_that_others_take() -> None:
    given = [ports.free_port() for _ in range(20)]
    assert len(set(given)) == 20
    by_kernel = int(ports.RANGE.read_text().split()[0])
    assert all(port not in PORTS and port < by_kernel for port in given)


def test_a_port_that_was_given_is_no_other_process_s_nor_given_again() -> None:
    port = ports.free_port()
    assert not ports.take(port)
    code = f"from tests.support import ports; print(ports.take({port}))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert said.stdout == "False\n", said.stderr


def test_a_port_where_somebody_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, free = ports.free_port(), ports.free_port()
    offered = iter([busy, free])
    monkeypatch.setattr(ports, "take", lambda _: True)
    monkeypatch.setattr(ports, "drawn", lambda: next(offered))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", busy))
        assert ports.free_port() == free

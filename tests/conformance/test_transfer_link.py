"""A broken link between two hosts: what was given up does not arrive when the link is back."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.transfer_process import Process, settled

BYTES = 64 << 20  # more than sockets take
OLD, MARKER = 1, 2
A, B = f"pd{os.getpid()}a", f"pd{os.getpid()}b"  # network namespaces, and ends of the cable


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=10)


@pytest.fixture
def cable() -> Iterator[None]:
    """Two hosts, 10.77.0.1 and 10.77.0.2, that see only each other."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("netns", "add", A)
        ip("netns", "add", B)
        ip("link", "add", A, "netns", A, "type", "veth", "peer", "name", B, "netns", B)
        for name, address in ((A, "10.77.0.1/24"), (B, "10.77.0.2/24")):
            ip("-n", name, "addr", "add", address, "dev", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", name, "up")
        yield
    finally:
        for name in (A, B):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=10)


@pytest.fixture
def writer(cable: None) -> Iterator[Process]:
    process = Process(BYTES, "10.77.0.1", "ip", "netns", "exec", A)
    yield process
    process.kill()


@pytest.fixture
def reader(cable: None) -> Iterator[Process]:
    process = Process(BYTES, "10.77.0.2", "ip", "netns", "exec", B)
    yield process
    process.kill()


def test_a_write_cut_by_a_broken_link_leaves_nothing_to_arrive_later(
    writer: Process, reader: Process
) -> None:
    writer.ask("fill", OLD)
    assert writer.ask("write", reader.session, reader.address, 4096) == "written"
    ip("-n", B, "link", "set", B, "down")
    assert writer.ask("write", reader.session, reader.address, BYTES) == "WriteCut"
    writer.ask("fill", MARKER)
    ip("-n", B, "link", "set", B, "up")
    assert settled(lambda: reader.ask("count", OLD), still_s=4.0)[0] == 4096
    assert reader.ask("count", MARKER) == 0
    assert writer.ask("write", reader.session, reader.address, BYTES) == "written"
    assert reader.ask("count", MARKER) == BYTES

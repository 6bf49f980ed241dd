from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from daemons.runtime import systemd


def test_without_a_service_manager_nothing_is_sent() -> None:
    assert systemd.notify("READY=1", environ={}) is False


def test_assignments_arrive_as_one_datagram(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        assert systemd.notify("READY=1", "STATUS=3 rooms", environ={"NOTIFY_SOCKET": path})
        assert manager.recv(100) == b"READY=1\nSTATUS=3 rooms"


def test_an_abstract_socket_works_too() -> None:
    name = f"pd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        assert systemd.notify("STOPPING=1", environ={"NOTIFY_SOCKET": "@" + name})
        assert manager.recv(100) == b"STOPPING=1"


def test_a_manager_that_went_away_is_no_error(tmp_path: Path) -> None:
    assert systemd.notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "gone")}) is False


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_its_limit(
    environ: dict[str, str], expected: float | None
) -> None:
    assert systemd.watchdog_period_s(environ) == expected


def test_sockets_of_a_unit_are_taken_once_and_not_inherited() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        fd = os.dup(held.fileno())
        os.set_inheritable(fd, True)
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "pd-lb"}
        (taken,) = systemd.listen_fds(environ, first_fd=fd)
        with taken:
            assert taken.getsockname() == held.getsockname()
            assert not os.get_inheritable(fd)
        assert environ == {}
        assert systemd.listen_fds(environ, first_fd=fd) == []


def test_sockets_meant_for_another_process_are_left_alone() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1"}
    assert systemd.listen_fds(environ) == []
    assert environ["LISTEN_FDS"] == "1"

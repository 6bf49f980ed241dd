from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import ClusterFile
from daemons.runtime import program


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text("name: test\n")
    return path


def test_a_daemon_that_ends_by_itself_exits_with_0(cluster_file: Path) -> None:
    seen: list[str] = []

    async def serve(file: ClusterFile) -> None:
        seen.append(file.cluster.name)

    assert program.run("pd-x", "about", serve, ["--config", str(cluster_file)]) == 0
    assert seen == ["test"]


def test_a_bad_cluster_file_exits_with_78_and_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(file: ClusterFile) -> None:
        raise AssertionError

    assert program.run("pd-x", "about", serve, ["--config", str(tmp_path / "none")]) == 78
    what, hint = capsys.readouterr().err.splitlines()
    assert what.startswith("pd-x: cannot read ")
    assert hint.startswith("hint: ")


def test_an_address_that_is_taken_exits_with_1_and_without_traceback(
    cluster_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(file: ClusterFile) -> None:
        raise OSError(98, "cannot listen on http://127.0.0.1:1: in use")

    assert program.run("pd-x", "about", serve, ["--config", str(cluster_file)]) == 1
    assert capsys.readouterr().err == "pd-x: cannot listen on http://127.0.0.1:1: in use\n"


async def test_the_first_sigterm_asks_and_the_second_means_now() -> None:
    stop = program.Stop()
    stop.listen()
    loop = asyncio.get_running_loop()
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.asked.wait(), 5)
        assert not stop.now.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.now.wait(), 5)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def test_without_a_socket_unit_there_is_no_socket() -> None:
    assert program.socket_of_unit() is None


def test_a_unit_with_two_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one, socket.socket() as other:
        monkeypatch.setattr(program.systemd, "listen_fds", lambda: [one, other])
        with pytest.raises(OperatorError, match="2 sockets"):
            program.socket_of_unit()


def test_there_is_always_a_version() -> None:
    assert program.version()[0].isdigit()

"""Options on sockets that somebody else holds."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from daemons.transfer import sockets


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def lingers(sock: socket.socket) -> tuple[int, int]:
    on, seconds = struct.unpack("@ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
    return on, seconds


def test_only_listening_ports_are_found(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        ports = {port_of(listener), port_of(client)}
        assert sockets.listening(ports) == {port_of(listener)}
    assert sockets.listening([]) == set()


def test_a_connection_to_the_peer_is_reset_when_it_is_closed(listener: socket.socket) -> None:
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    with server:
        assert sockets.reset_on_close({"127.0.0.1"}, {port_of(listener)}) == 1
        client.close()
        select.select([server], [], [], 5)
        with pytest.raises(ConnectionResetError):
            server.recv(1)


@pytest.mark.parametrize("where", ["another host", "another port"])
def test_a_connection_elsewhere_is_let_be(listener: socket.socket, where: str) -> None:
    host = "127.0.0.2" if where == "another host" else "127.0.0.1"
    port = port_of(listener) - (where == "another port")
    with socket.create_connection(listener.getsockname()) as client:
        assert sockets.reset_on_close({host}, {port}) == 0
        assert lingers(client)[0] == 0


def test_an_ipv4_peer_is_found_behind_an_ipv6_socket(listener: socket.socket) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client:
        try:
            client.connect(("::ffff:127.0.0.1", port_of(listener)))
        except OSError:
            pytest.skip("this machine has no IPv6")
        assert sockets.reset_on_close({"127.0.0.1"}, {port_of(listener)}) == 1
        assert lingers(client) == (1, 0)


def test_nothing_is_closed_or_read(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"x")
            sockets.reset_on_close({"127.0.0.1"}, {port_of(listener)})
            sockets.listening({port_of(listener)})
            assert server.recv(1) == b"x"


def test_a_thread_that_waits_in_accept_is_hurried(listener: socket.socket) -> None:
    listener.setblocking(True)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 60, 0))
    ended: list[str] = []

    def accept_until_idle() -> None:
        listener.accept()[0].close()
        try:
            listener.accept()
        except BlockingIOError:
            ended.append("idle")

    thread = threading.Thread(target=accept_until_idle)
    thread.start()
    sockets.hurry(port_of(listener))
    thread.join(10)
    assert ended == ["idle"]


def test_hurrying_a_port_nobody_listens_on_does_nothing() -> None:
    sockets.hurry(1)


def test_an_address_is_its_own_and_a_bad_name_has_none() -> None:
    assert sockets.addresses("127.0.0.1") == {"127.0.0.1"}
    assert sockets.addresses("::1") == {"::1"}
    assert sockets.addresses("no such host") == frozenset()


def test_a_port_that_nobody_listens_at_refuses_and_other_silence_does_not(
    listener: socket.socket,
) -> None:
    port = port_of(listener)
    assert not sockets.refuses(f"127.0.0.1:{port}")
    listener.close()
    assert sockets.refuses(f"127.0.0.1:{port}")
    assert not sockets.refuses("no-such-host.invalid:1")
    assert not sockets.refuses("nonsense")

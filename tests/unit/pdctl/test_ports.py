"""A look ahead at fixed ports."""

from __future__ import annotations

import socket
from pathlib import Path

from daemons.cluster.load import load
from pdctl.ports import is_free, taken


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)


def test_an_address_of_another_machine_counts_as_free() -> None:
    assert is_free("203.0.113.1", 80)
    assert is_free("no.such.host.invalid", 80)


def test_only_this_hosts_fixed_ports_are_looked_at(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        path = tmp_path / "c.yaml"
        path.write_text(
            "name: c\nhosts: {a: {}, b: {}}\n"
            f"bootstrap: {{host: a, port: {port}}}\nlb: {{host: b, port: {port}}}\n"
            "prefill: {p0: {host: a}}\n"
        )
        cluster = load(path).cluster
        assert list(taken(cluster, "a")) == [("bootstrap", f"127.0.0.1:{port}")]
        assert list(taken(cluster, "b")) == [("lb", f"127.0.0.1:{port}")]

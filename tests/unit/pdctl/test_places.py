"""Where each daemon is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.key import make_key
from daemons.cluster.load import load
from daemons.cluster.model import Cluster
from daemons.protocol.topology import InstanceInfo, Role
from pdctl.places import Place, places, with_phone_book
from tests.support.fake_fleet import instance


def cluster(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load(path).cluster


def info(name: str, role: str, port: int) -> InstanceInfo:
    return msgspec.convert(instance(name, role, port, "ready"), InstanceInfo)


TWO_HOSTS = """
name: c
hosts: {n1: {address: 192.0.2.1}, n2: {address: "2001:db8::2"}}
bootstrap: {host: n1, port: 9001}
lb: {host: n1, port: 9002, advertise: 192.0.2.9}
prefill: {p0: {host: n1}}
decode: {d0: {host: n2, port: 9003}}
"""


def test_places_come_in_starting_order_with_their_hosts_address(tmp_path: Path) -> None:
    assert list(places(cluster(tmp_path, TWO_HOSTS)).values()) == [
        Place("bootstrap", Role.BOOTSTRAP, "n1", "192.0.2.1", 9001),
        Place("p0", Role.PREFILL, "n1", "192.0.2.1", 0),
        Place("d0", Role.DECODE, "n2", "2001:db8::2", 9003),
        Place("lb", Role.LB, "n1", "192.0.2.9", 9002),
    ]


def test_a_url_needs_a_port_and_brackets_ipv6(tmp_path: Path) -> None:
    known = places(cluster(tmp_path, TWO_HOSTS))
    assert known["p0"].url == ""
    assert known["p0"].where == "192.0.2.1:?"
    assert known["d0"].url == "http://[2001:db8::2]:9003"
    assert known["d0"].where == "[2001:db8::2]:9003"


def test_the_phone_book_knows_port_0_and_strangers(tmp_path: Path) -> None:
    known = places(cluster(tmp_path, TWO_HOSTS))
    merged = with_phone_book(
        known, [info("p0", "prefill", 5), info("d0", "decode", 6), info("p9", "prefill", 7)]
    )
    assert merged["p0"].url == "http://127.0.0.1:5"
    assert merged["d0"].port == 9003  # the file's word holds where it has one
    assert merged["p9"].host == "?"


def test_a_wrong_setting_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="p0"):
        places(cluster(tmp_path, "name: c\nprefill: {p0: {bogus: 1}}"))


def test_every_place_of_a_cluster_with_a_key_knows_its_token(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    known = places(Cluster(name="c", key_file=str(tmp_path / "key"), prefill={"p0": {}}))
    assert known["p0"].token == key.token(Role.PREFILL)
    assert known["bootstrap"].token == key.token(Role.BOOTSTRAP)
    found = with_phone_book(known, [info("d7", "decode", 9)])
    assert found["d7"].token == key.token(Role.DECODE)
    assert str(key.token(Role.PREFILL)) not in repr(known)

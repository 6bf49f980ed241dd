"""Read a cluster file and work out one daemon's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import (
    address_of,
    instance_names,
    is_loopback,
    load,
    phone_book_aliases,
    phone_book_of,
    place_on_host,
    read_settings,
    role_of,
    settings_of,
)
from daemons.cluster.model import Cluster
from daemons.decode.config import DecodeConfig
from daemons.prefill.config import PrefillConfig
from daemons.protocol.topology import Role

FILE = """
name: toy
hosts: {local: {address: "::1"}, far: {address: 10.0.0.2}}
bootstrap: {port: 7000}
engine: {page_size: 64, threads: 2}
timers: {queue_s: 9}
prefill:
  p0:
  p1: {host: far, engine: {page_size: 1}, max_rooms: 5}
decode:
  d0: {rows: 3}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    return file


def test_a_file_is_read_with_its_place_and_hash(path: Path) -> None:
    file = load(path)
    assert file.path == path.resolve()
    assert file.cluster.name == "toy"
    assert len(file.hash) == 12
    path.write_text(FILE + "\n")
    assert load(path).hash != file.hash


def test_names_come_in_starting_order(path: Path) -> None:
    assert instance_names(load(path).cluster) == ["bootstrap", "p0", "p1", "d0", "lb"]


def test_a_name_tells_its_role(path: Path) -> None:
    cluster = load(path).cluster
    roles = {name: role_of(cluster, name) for name in instance_names(cluster)}
    assert roles == {
        "bootstrap": Role.BOOTSTRAP,
        "p0": Role.PREFILL,
        "p1": Role.PREFILL,
        "d0": Role.DECODE,
        "lb": Role.LB,
    }


def test_an_unknown_name_is_told_with_the_known_ones(path: Path) -> None:
    with pytest.raises(OperatorError, match="no daemon p9") as told:
        role_of(load(path).cluster, "p9")
    assert told.value.hint == "it has: bootstrap, p0, p1, d0, lb"


def test_shared_sections_hold_unless_an_instance_says_other(path: Path) -> None:
    settings, origins = settings_of(load(path).cluster, "p1")
    assert settings["engine"] == {"page_size": 1, "threads": 2}
    assert origins == {
        "engine.page_size": "prefill.p1",
        "engine.threads": "engine",
        "timers.queue_s": "timers",
        "host": "prefill.p1",
        "max_rooms": "prefill.p1",
    }


def test_what_is_named_and_left_blank_has_all_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: toy\nlb:\nengine:\nprefill: {p0: }\n")
    cluster = load(file).cluster
    assert settings_of(cluster, "lb") == ({}, {})
    assert read_settings(cluster, "p0", PrefillConfig) == PrefillConfig()


def test_one_instance_does_not_change_another(path: Path) -> None:
    cluster = load(path).cluster
    assert read_settings(cluster, "p1", PrefillConfig).engine.page_size == 1
    assert read_settings(cluster, "p0", PrefillConfig).engine.page_size == 64
    assert read_settings(cluster, "d0", DecodeConfig).engine.page_size == 64
    assert cluster.engine == {"page_size": 64, "threads": 2}


def test_daemons_that_are_no_workers_get_their_own_section_only(path: Path) -> None:
    settings, origins = settings_of(load(path).cluster, "bootstrap")
    assert settings == {"port": 7000}
    assert origins == {"port": "bootstrap"}


def test_settings_come_in_the_form_of_the_daemon(path: Path) -> None:
    config = read_settings(load(path).cluster, "d0", DecodeConfig)
    assert config.rows == 3
    assert config.timers.queue_s == 9
    assert config.max_rooms == DecodeConfig().max_rooms


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("prefill: {p0: {max_room: 5}}", "max_room"),
        ("prefill: {p0: {rows: zero}}", r"\$\.rows"),
        ("engine: {page_size: 0}\nprefill: {p0: }", r"\$\.engine\.page_size"),
    ],
)
def test_a_wrong_setting_is_told_with_instance_and_place(
    tmp_path: Path, section: str, place: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"name: toy\n{section}\n")
    with pytest.raises(OperatorError, match=f"p0: .*{place}"):
        read_settings(load(file).cluster, "p0", PrefillConfig)


@pytest.mark.parametrize(
    "text",
    [
        "name: [unclosed",
        "- a list",
        "",
        "name: toy\nunknown: 1",
        "name: toy\nprefill: {x: {}}\ndecode: {x: {}}",
        "name: toy\nprefill: {lb: {}}",
        "name: toy\nprefill: {P0: {}}",
    ],
)
def test_a_bad_file_is_refused_with_its_path_and_a_hint(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(OperatorError, match=r"c\.yaml") as told:
        load(file)
    assert told.value.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"name: \xff\xfe")
    with pytest.raises(OperatorError, match=r"c\.yaml"):
        load(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"cannot read .*none\.yaml: No such file"):
        load(tmp_path / "none.yaml")


def test_yaml_cannot_make_objects(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: !!python/object/apply:os.getcwd []")
    with pytest.raises(OperatorError, match="could not determine a constructor"):
        load(file)


def test_a_host_has_an_address_or_is_told_to_be_absent(path: Path) -> None:
    cluster = load(path).cluster
    assert address_of(cluster, "local") == "::1"
    with pytest.raises(OperatorError, match="no host moon") as told:
        address_of(cluster, "moon")
    assert told.value.hint == "it has: local, far"


@pytest.mark.parametrize("port", [0, -1, 70000, "many"])
def test_a_phone_book_needs_a_port_that_others_can_know(port: object) -> None:
    with pytest.raises(OperatorError, match="bootstrap: port is"):
        phone_book_of(Cluster(name="t", bootstrap={"port": port}))


def test_the_phone_book_is_found_by_its_advertised_address_before_its_hosts() -> None:
    assert phone_book_of(Cluster(name="t")) == ("127.0.0.1", 8998)
    section = {"advertise": "10.1.1.1", "port": 9000}
    assert phone_book_of(Cluster(name="t", bootstrap=section)) == ("10.1.1.1", 9000)


def test_a_phone_book_may_have_other_names_that_are_only_names() -> None:
    cluster = Cluster(name="c", bootstrap={"aliases": ["n1.example:8998", "[::1]:80"]})
    assert phone_book_aliases(cluster) == {("n1.example", 8998), ("::1", 80)}
    assert phone_book_aliases(Cluster(name="c")) == frozenset()


@pytest.mark.parametrize("alias", ["n1", "n1:", ":80", "n1:0", "n1:65536", "n1:x"])
def test_a_name_that_is_no_host_and_port_is_refused(alias: str) -> None:
    with pytest.raises(OperatorError, match="is not host:port"):
        phone_book_aliases(Cluster(name="c", bootstrap={"aliases": [alias]}))


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("n1.example", False)],
)  # fmt: skip
def test_only_loopback_is_loopback(address: str, loopback: bool) -> None:  # noqa: FBT001
    assert is_loopback(address) is loopback


def test_a_worker_knows_its_place_among_those_of_its_host() -> None:
    cluster = Cluster(
        name="c", prefill={"p0": {}, "p1": {"host": "n2"}}, decode={"d0": {"host": "local"}}
    )
    assert [place_on_host(cluster, name) for name in ("p0", "d0", "p1")] == [(0, 2), (1, 2), (0, 1)]

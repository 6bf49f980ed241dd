"""Which files a host must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.cluster.key import make_key
from daemons.cluster.load import load
from pdctl.installation.wanted import CONFIG, UNITS, Choice, Wanted, units_of_host, wanted

TEMPLATES = {"pd-lb.service": "User=pd\nExecStart=/opt/pd/bin/pd-lb\n"}
TWO_HOSTS = """
name: two
hosts: {n1: {address: 192.0.2.1}, n2: {address: "2001:db8::2"}}
bootstrap: {host: n1}
lb: {host: n2, port: 80}
prefill: {p0: {host: n1, placement: {gpus: "1", numa_nodes: "0"}}}
decode: {d0: {host: n2, timers: {drain_s: 100}}}
"""


def files_of(tmp_path: Path, text: str, host: str, **choice: object) -> dict[str, Wanted]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    found = wanted(load(path), Choice(host, **choice), TEMPLATES)  # type: ignore[arg-type]
    return {
        str(file.path.relative_to(UNITS) if file.path.is_relative_to(UNITS) else file.path): file
        for file in found
    }


@pytest.fixture
def n1(tmp_path: Path) -> dict[str, Wanted]:
    return files_of(tmp_path, TWO_HOSTS, "n1")


def test_a_host_gets_its_own_instances_only(n1: dict[str, Wanted]) -> None:
    links = {name for name in n1 if name.startswith("pd.target.wants/")}
    assert links == {
        "pd.target.wants/pd-prefill@p0.service",
        "pd.target.wants/pd-bootstrap.service",
        "pd.target.wants/pd-bootstrap.socket",
    }
    assert n1["pd.target.wants/pd-prefill@p0.service"].link.endswith("/pd-prefill@.service")


def test_the_cluster_file_is_the_same_on_every_host(n1: dict[str, Wanted]) -> None:
    assert n1[str(CONFIG)].text == TWO_HOSTS


def test_placement_becomes_words_of_the_instance_unit(n1: dict[str, Wanted]) -> None:
    lines = n1["pd-prefill@p0.service.d/10-pd.conf"].text.splitlines()
    assert {
        "NUMAPolicy=bind",
        "NUMAMask=0",
        "Environment=CUDA_VISIBLE_DEVICES=1",
    } <= set(lines)


def test_systemd_waits_longer_than_a_drain(tmp_path: Path) -> None:
    n2 = files_of(tmp_path, TWO_HOSTS, "n2")
    assert "TimeoutStopSec=130" in n2["pd-decode@d0.service.d/10-pd.conf"].text.splitlines()


def test_sockets_listen_where_the_cluster_file_says(tmp_path: Path, n1: dict[str, Wanted]) -> None:
    assert "ListenStream=192.0.2.1:8998\n" in n1["pd-bootstrap.socket.d/10-pd.conf"].text
    n2 = files_of(tmp_path, TWO_HOSTS, "n2")
    assert "ListenStream=\nListenStream=[2001:db8::2]:80\n" in n2["pd-lb.socket.d/10-pd.conf"].text


def test_a_port_that_is_chosen_at_the_start_has_no_socket(tmp_path: Path) -> None:
    found = files_of(tmp_path, "name: c\nlb: {port: 0}\n", "local")
    assert not [name for name in found if "pd-lb.socket" in name]


def test_prefix_and_user_are_the_operators(tmp_path: Path) -> None:
    found = files_of(tmp_path, "name: c\n", "local", prefix=Path("/srv/pd"), user="llm")
    assert found["pd-lb.service"].text == "User=llm\nExecStart=/srv/pd/bin/pd-lb\n"
    assert "u llm - " in found["/etc/sysusers.d/pd.conf"].text


def test_the_key_is_for_its_owner_and_reaches_units_as_a_credential(tmp_path: Path) -> None:
    key = make_key(tmp_path / "the.key")
    found = files_of(tmp_path, "name: c\nkey_file: the.key\n", "local")
    file = found["/etc/pd/the.key"]
    assert (file.mode, file.is_secret, file.text.strip()) == (0o600, True, key.secret.decode())
    drop_in = found["pd-lb.service.d/10-pd.conf"].text
    assert "LoadCredential=pd-key:/etc/pd/the.key\n" in drop_in


def test_units_start_with_their_sockets(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TWO_HOSTS)
    assert units_of_host(load(path), "n2") == [
        "pd-lb.socket",
        "pd-decode@d0.service",
        "pd-lb.service",
    ]

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.key import LEAST_BYTES, ClusterKey, load_key, make_key
from daemons.cluster.load import load
from daemons.cluster.model import Cluster
from daemons.protocol.topology import Role

TEXT = "0123456789abcdef" * 4
NOWHERE: dict[str, str] = {}


def written(path: Path, text: str = TEXT, mode: int = 0o600) -> Cluster:
    path.write_text(text)
    path.chmod(mode)
    return Cluster(name="t", key_file=str(path))


def test_a_cluster_without_key_file_has_no_key() -> None:
    assert load_key(Cluster(name="t"), environ=NOWHERE) is None


def test_space_around_the_key_does_not_count(tmp_path: Path) -> None:
    key = load_key(written(tmp_path / "key", f"\n {TEXT} \r\n"), environ=NOWHERE)
    assert key is not None
    assert key.secret == TEXT.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_may_use_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    cluster = written(tmp_path / "key", mode=mode)
    with pytest.raises(OperatorError, match="others may read") as refused:
        load_key(cluster, environ=NOWHERE)
    assert refused.value.hint == f"chmod 600 {tmp_path / 'key'}"


@pytest.mark.parametrize("text", ["", "short", "x" * (LEAST_BYTES - 1) + " \n", "x" * 5000])
def test_a_key_of_a_wrong_length_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(OperatorError, match="bytes"):
        load_key(written(tmp_path / "key", text), environ=NOWHERE)


def test_a_key_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(name="t", key_file=str(tmp_path / "none"))
    with pytest.raises(OperatorError, match="no key in") as refused:
        load_key(cluster, environ=NOWHERE)
    assert "pdctl keygen" in refused.value.hint


def test_a_key_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot read"):
        load_key(Cluster(name="t", key_file=str(tmp_path)), environ=NOWHERE)


def test_a_credential_of_systemd_wins_whatever_its_mode(tmp_path: Path) -> None:
    written(tmp_path / "pd-key", "c" * 40, mode=0o440)
    cluster = written(tmp_path / "key")
    key = load_key(cluster, environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert key is not None
    assert key.secret == b"c" * 40
    assert key.origin == "credential pd-key"


def test_other_credentials_are_not_the_key(tmp_path: Path) -> None:
    cluster = written(tmp_path / "key")
    key = load_key(cluster, environ={"CREDENTIALS_DIRECTORY": str(tmp_path / "other")})
    assert key is not None
    assert key.secret == TEXT.encode()


def test_a_relative_key_file_lies_beside_the_cluster_file(tmp_path: Path) -> None:
    written(tmp_path / "key")
    file = tmp_path / "cluster.yaml"
    file.write_text("name: t\nkey_file: key\n")
    assert load_key(load(file).cluster, environ=NOWHERE) is not None


def test_a_new_key_is_its_owners_alone_and_can_be_used(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_key(tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert load_key(Cluster(name="t", key_file=str(tmp_path / "key")), environ=NOWHERE) == (
        ClusterKey(made.secret, str(tmp_path / "key"))
    )
    assert make_key(tmp_path / "other").secret != made.secret


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "key")
    with pytest.raises(OperatorError, match="exists"):
        make_key(tmp_path / "key")
    assert (tmp_path / "key").read_text() == TEXT


def test_each_use_has_a_secret_of_its_own() -> None:
    key = ClusterKey(TEXT.encode(), "here")
    uses = {key.plane.hex(), key.token(Role.BOOTSTRAP), key.token(Role.DECODE), key.token(Role.LB)}
    assert len(uses) == 4
    assert key.token(Role.PREFILL) == key.token(Role.DECODE)
    assert not any(key.short_hash in use for use in uses)
    assert ClusterKey(b"other" * 8, "here").token(Role.LB) not in uses


def test_a_key_does_not_show() -> None:
    key = ClusterKey(TEXT.encode(), "here")
    for text in (repr(key), str(key), f"{key}"):
        assert TEXT not in text
        assert key.short_hash in text

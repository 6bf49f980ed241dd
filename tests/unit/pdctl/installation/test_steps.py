"""Writing and removing."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from pdctl.installation.state import Deed, Record, changes, read_record
from pdctl.installation.steps import apply, erase, remove_tree, tool, write
from pdctl.installation.wanted import Wanted

EMPTY = Record(version="1", host="n1", prefix="/opt/pd", user="pd")
UNIT = Wanted(Path("/etc/systemd/system/pd.target.d/x.conf"), "x\n")
LINK = Wanted(Path("/etc/systemd/system/a.wants/pd.target"), link="/etc/systemd/system/pd.target")
CONFIG = Wanted(Path("/etc/pd/cluster.yaml"), "name: c\n")
FILES = [UNIT, LINK, CONFIG]


def put(root: Path) -> Record:
    return apply(changes(FILES, read_record(root), root), EMPTY, root)


def test_an_installation_is_written_and_remembered(tmp_path: Path) -> None:
    done = put(tmp_path)
    assert (tmp_path / "etc/pd/cluster.yaml").read_text() == "name: c\n"
    assert (tmp_path / "etc/systemd/system/a.wants/pd.target").is_symlink()
    assert read_record(tmp_path) == done
    again = changes(FILES, done, tmp_path)
    assert {change.deed for change in again} == {Deed.KEEP}
    assert put(tmp_path) == done


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    write(Wanted(Path("/k"), "secret", mode=0o600), tmp_path)
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600


def test_an_edited_file_that_is_replaced_stays_beside(tmp_path: Path) -> None:
    put(tmp_path)
    path = tmp_path / "etc/systemd/system/pd.target.d/x.conf"
    path.write_text("mine\n")
    put(tmp_path)
    assert (path.read_text(), path.with_name("x.conf.edited").read_text()) == ("x\n", "mine\n")


def test_erasing_leaves_nothing_but_the_operators_own(tmp_path: Path) -> None:
    assert erase(put(tmp_path), tmp_path, purge=False) == ["/etc/pd/cluster.yaml"]
    left = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert left == [tmp_path / "etc/pd/cluster.yaml"]


def test_purging_leaves_nothing(tmp_path: Path) -> None:
    done = put(tmp_path)
    (tmp_path / "etc/systemd/system/pd.target.d/x.conf").write_text("mine\n")
    assert erase(done, tmp_path, purge=True) == []
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not (tmp_path / "etc/pd").exists()
    assert (tmp_path / "etc").exists()


def test_a_tool_that_fails_is_told_by_its_last_words() -> None:
    with pytest.raises(OperatorError, match="failed: second"):
        tool("sh", "-c", "echo first >&2; echo second >&2; exit 3")
    with pytest.raises(OperatorError, match="is not installed"):
        tool("no-such-tool-of-ours")
    assert tool("echo", "yes") == "yes\n"


def test_a_folder_that_is_not_there_is_removed_already(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")

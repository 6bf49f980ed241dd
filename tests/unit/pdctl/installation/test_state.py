"""What is there, compared with what should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from pdctl.installation.state import (
    RECORD,
    Deed,
    Record,
    at,
    changes,
    content,
    digest,
    read_record,
    written,
)
from pdctl.installation.wanted import Wanted

FILE = Wanted(Path("/etc/x"), "new\n")
LINK = Wanted(Path("/etc/l"), link="/etc/x")


def record(**files: str) -> Record:
    hashes = {f"/etc/{name}": digest(text) for name, text in files.items()}
    return Record(version="1", host="n1", prefix="/opt/pd", user="pd", files=hashes)


def put(root: Path, text: str, name: str = "x") -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / name).write_text(text)


@pytest.mark.parametrize(
    ("there", "ours", "deed"),
    [
        (None, None, Deed.CREATE),
        (None, "old\n", Deed.CREATE),
        ("new\n", None, Deed.KEEP),
        ("new\n", "old\n", Deed.KEEP),
        ("old\n", "old\n", Deed.UPDATE),
        ("mine\n", "old\n", Deed.CONFLICT),
        ("mine\n", None, Deed.CONFLICT),
    ],
)
def test_only_what_we_wrote_is_changed_silently(
    there: str | None, ours: str | None, deed: Deed, tmp_path: Path
) -> None:
    if there is not None:
        put(tmp_path, there)
    known = record(x=ours) if ours is not None else None
    (change,) = changes([FILE], known, tmp_path)
    assert (change.deed, change.was) == (deed, there)


@pytest.mark.parametrize(("there", "deed"), [("old\n", Deed.REMOVE), ("mine\n", Deed.LEAVE)])
def test_what_is_not_wanted_any_more_goes_unless_it_was_edited(
    there: str, deed: Deed, tmp_path: Path
) -> None:
    put(tmp_path, there)
    assert [change.deed for change in changes([], record(x="old\n"), tmp_path)] == [deed]


def test_a_link_is_compared_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/l").symlink_to("/etc/x")
    assert [change.deed for change in changes([LINK], None, tmp_path)] == [Deed.KEEP]
    assert content(tmp_path / "etc/l") == "-> /etc/x"
    assert written(LINK) == digest("-> /etc/x")


def test_a_record_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    path = at(tmp_path, RECORD)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(OperatorError, match="installed"):
        read_record(tmp_path)

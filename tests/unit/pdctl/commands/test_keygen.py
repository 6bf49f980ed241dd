"""A new key is its owner's alone, and is never printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pdctl.errors import Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]


def test_a_key_is_written_and_only_its_hash_is_shown(tmp_path: Path, pdctl: Pdctl) -> None:
    path = tmp_path / "key"
    said = pdctl("keygen", path)
    assert said.code == Exit.OK
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().strip() not in said.out + said.err
    assert f"key_file: {path}" in said.err


def test_a_key_that_is_there_stays(tmp_path: Path, pdctl: Pdctl) -> None:
    path = tmp_path / "key"
    pdctl("keygen", path)
    before = path.read_text()
    said = pdctl("keygen", path)
    assert said.code == Exit.BAD_CONFIG
    assert "exists" in said.err
    assert path.read_text() == before


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, pdctl: Pdctl) -> None:
    said = pdctl("keygen", tmp_path / "none" / "key")
    assert said.code == Exit.BAD_CONFIG
    assert "cannot write" in said.err

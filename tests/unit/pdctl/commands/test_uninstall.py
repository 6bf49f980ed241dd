"""Taking away what was installed into a root of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.errors import Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]


@pytest.fixture
def root(tmp_path: Path, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pdctl.installation.steps.tool", lambda *argv: "")
    root = tmp_path / "image"
    (root / "opt/pd/bin").mkdir(parents=True)
    (root / "opt/pd/bin/pdctl").write_text("")
    (root / "opt/pd/pyvenv.cfg").write_text("")
    config = tmp_path / "c.yaml"
    config.write_text("name: c\nprefill: {p0: {}}\n")
    assert pdctl("install", "--config", config, "--root", root, "--no-model", "--yes").code == 0
    return root


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_the_operators_file_stays(root: Path, pdctl: Pdctl) -> None:
    said = pdctl("uninstall", "--root", root, "--yes")
    assert said.code == Exit.OK
    assert "kept     /etc/pd/cluster.yaml" in said.err
    assert files(root) == ["etc/pd/cluster.yaml"]


def test_a_purge_leaves_nothing(root: Path, pdctl: Pdctl) -> None:
    assert pdctl("uninstall", "--root", root, "--purge", "--yes").code == Exit.OK
    assert files(root) == []


def test_a_dry_run_removes_nothing(root: Path, pdctl: Pdctl) -> None:
    before = files(root)
    said = pdctl("uninstall", "--root", root, "--dry-run")
    assert "stop     pd-prefill@p0.service" in said.err
    assert files(root) == before


def test_without_a_terminal_it_asks_for_yes(root: Path, pdctl: Pdctl) -> None:
    before = files(root)
    assert pdctl("uninstall", "--root", root).code == Exit.USAGE
    assert files(root) == before


def test_where_nothing_is_installed_nothing_is_done(tmp_path: Path, pdctl: Pdctl) -> None:
    said = pdctl("uninstall", "--root", tmp_path, "--yes")
    assert (said.code, "nothing of ours" in said.err) == (Exit.OK, True)

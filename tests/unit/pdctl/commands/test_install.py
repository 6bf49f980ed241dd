"""Installing into a root of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdctl.errors import Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of an installation into an image with the software in place, and its cluster file."""
    monkeypatch.setattr("pdctl.installation.steps.tool", lambda *argv: "")
    root = tmp_path / "image"
    (root / "opt/pd/bin").mkdir(parents=True)
    (root / "opt/pd/bin/pdctl").write_text("")
    (tmp_path / "c.yaml").write_text("name: c\nprefill: {p0: {}}\ndecode: {d0: {}}\n")
    return ["--config", str(tmp_path / "c.yaml"), "--root", str(root)]


def unit(image: list[str], name: str) -> Path:
    return Path(image[3], "etc/systemd/system", name)


def test_a_second_installation_changes_nothing(image: list[str], pdctl: Pdctl) -> None:
    assert pdctl("install", *image, "--no-model", "--yes").code == Exit.OK
    assert unit(image, "pd.target.wants/pd-prefill@p0.service").is_symlink()
    assert pdctl("diff", *image).code == Exit.OK
    assert "nothing to change" in pdctl("install", *image, "--no-model").err


def test_a_dry_run_writes_nothing_and_a_difference_has_an_exit_code(
    image: list[str], pdctl: Pdctl
) -> None:
    assert "create   /etc/pd/cluster.yaml" in pdctl("install", *image, "--dry-run").err
    assert not Path(image[3], "etc").exists()
    said = pdctl("diff", *image)
    assert said.code == Exit.FAILED
    assert "+name: c" in said.out


def test_without_a_terminal_it_asks_for_yes(image: list[str], pdctl: Pdctl) -> None:
    assert pdctl("install", *image, "--no-model").code == Exit.USAGE
    assert not Path(image[3], "etc").exists()


def test_an_edited_unit_stops_everything(image: list[str], pdctl: Pdctl) -> None:
    pdctl("install", *image, "--no-model", "--yes")
    unit(image, "pd-lb.service").write_text("mine\n")
    unit(image, "pd.target").unlink()
    said = pdctl("install", *image, "--no-model", "--yes")
    assert said.code == Exit.CONFLICT
    assert "/etc/systemd/system/pd-lb.service" in said.err
    assert not unit(image, "pd.target").exists()
    assert pdctl("install", *image, "--no-model", "--yes", "--force").code == Exit.OK
    assert unit(image, "pd-lb.service.edited").read_text() == "mine\n"
    assert unit(image, "pd.target").exists()


def test_an_instance_that_left_the_file_leaves_the_host(image: list[str], pdctl: Pdctl) -> None:
    pdctl("install", *image, "--no-model", "--yes")
    Path(image[1]).write_text("name: c\nprefill: {p0: {}}\n")
    assert pdctl("install", *image, "--no-model", "--yes").code == Exit.OK
    assert not unit(image, "pd.target.wants/pd-decode@d0.service").is_symlink()
    assert not unit(image, "pd-decode@d0.service.d").exists()


def test_without_the_software_nothing_is_written(image: list[str], pdctl: Pdctl) -> None:
    Path(image[3], "opt/pd/bin/pdctl").unlink()
    said = pdctl("install", *image, "--no-model", "--yes")
    assert (said.code, "pdctl.seed" in said.err) == (Exit.CONFLICT, True)
    assert not Path(image[3], "etc").exists()


def test_the_embedded_model_goes_where_the_service_finds_it(
    image: list[str], pdctl: Pdctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert pdctl("install", *image, "--yes").code == Exit.CONFLICT
    own = tmp_path / "cache/pd/models/smollm2-135m-instruct"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert pdctl("install", *image, "--yes").code == Exit.OK
    there = Path(image[3], "var/cache/pd/models/smollm2-135m-instruct/config.json")
    assert there.read_text() == "{}"


def test_a_key_is_not_shown_in_a_difference(image: list[str], pdctl: Pdctl) -> None:
    config = Path(image[1])
    config.write_text(config.read_text() + "key_file: c.key\n")
    pdctl("keygen", config.parent / "c.key")
    secret = (config.parent / "c.key").read_text().strip()
    said = pdctl("diff", *image)
    assert "create /etc/pd/c.key" in said.out
    assert secret not in said.out


def test_a_difference_as_json_keeps_its_contract(
    image: list[str], pdctl: Pdctl, keeps_contract: Callable[[str, str], Any]
) -> None:
    document = keeps_contract("diff", pdctl("diff", *image, "-o", "json").out)
    assert {"path": "/etc/pd/cluster.yaml", "deed": "create"} in document["changes"]

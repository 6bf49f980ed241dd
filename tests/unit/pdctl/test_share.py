"""Packaged files are found in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.share import example_config, share_directory


def test_a_checkout_has_configs_and_units() -> None:
    assert example_config().is_file()
    assert (share_directory("systemd") / "pd.target").is_file()


def test_the_wheels_folder_wins(tmp_path: Path) -> None:
    package = tmp_path / "pdctl"
    (package / "share" / "configs").mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    assert share_directory("configs", here=package) == package / "share" / "configs"


def test_neither_is_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="configs/ is neither in"):
        share_directory("configs", here=tmp_path / "pdctl")

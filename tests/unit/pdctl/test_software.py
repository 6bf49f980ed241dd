"""What is installed fits together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pdctl.finding import Status
from pdctl.software import check_names, check_versions, check_wheels

ROOT = Path(__file__).parents[3]
CPU = "mooncake-transfer-engine-non-cuda"
CUDA12 = "mooncake-transfer-engine"
CUDA13 = "mooncake-transfer-engine-cuda13"


@pytest.mark.parametrize(
    ("packages", "driver", "status"),
    [
        ({"torch": "2.13.0+cpu", CPU: "1"}, "", Status.OK),
        ({"torch": "2.13.0+cu130", CUDA13: "1"}, "1 (driver 580)", Status.OK),
        ({"torch": "2.13.0+cu130", CUDA12: "1"}, "1 (driver 580)", Status.FAIL),
        ({"torch": "2.13.0+cpu", CPU: "1"}, "1 (driver 580)", Status.WARN),
        ({"torch": "2.13.0+cpu", CPU: "1", CUDA12: "1"}, "", Status.FAIL),
        ({"torch": "2.13.0+cpu"}, "", Status.FAIL),
        ({CPU: "1"}, "", Status.FAIL),
    ],
)
def test_one_mooncake_of_torchs_cuda_is_right(
    packages: dict[str, str], driver: str, status: Status
) -> None:
    assert check_wheels(packages, driver).status is status


def test_versions_of_this_very_host_are_told() -> None:
    found = check_versions()
    assert found.status is Status.OK
    assert "torch " in found.value


def test_another_package_of_our_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    assert check_names().status is Status.OK
    (tmp_path / "daemons").mkdir()
    (tmp_path / "daemons/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(ROOT), str(tmp_path)])
    found = check_names()
    assert (found.status, str(tmp_path) in found.value) == (Status.WARN, True)


def test_a_package_that_hides_ours_fails(tmp_path: Path) -> None:
    assert check_names(tmp_path).status is Status.FAIL

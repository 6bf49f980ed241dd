"""Devices, as the kernel tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.devices import (
    check_gpu,
    check_hugepages,
    check_peer_memory,
    check_rdma,
    rdma_names,
)
from pdctl.finding import Status

GID = "0000:0000:0000:0000:0000:ffff:0a00:0001"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def port(root: Path, state: str = "4: ACTIVE", gid: str = GID) -> None:
    folder = root / "sys/class/infiniband/mlx5_0/ports/1"
    write(folder / "state", state)
    write(folder / "rate", "400 Gb/sec (4X NDR)")
    write(folder / "link_layer", "Ethernet")
    write(folder / "gids/0", gid)


def test_no_rdma_device_is_well_unless_it_is_wanted(tmp_path: Path) -> None:
    assert [each.status for each in check_rdma({"auto"}, tmp_path)] == [Status.OK]
    assert [each.status for each in check_rdma({"rdma"}, tmp_path)] == [Status.FAIL]


def test_a_port_that_is_up_tells_rate_layer_and_gid(tmp_path: Path) -> None:
    port(tmp_path)
    assert rdma_names(tmp_path) == ("rdma", "rdma-mlx5_0-1")
    whole, one = check_rdma({"rdma"}, tmp_path)
    assert (whole.value, one.status) == ("1 ports", Status.OK)
    assert one.value == f"ACTIVE, 400 Gb/sec (4X NDR), Ethernet, GID {GID}"


@pytest.mark.parametrize(
    ("state", "gid", "hint"),
    [("1: DOWN", GID, "cable"), ("4: ACTIVE", "fe80:" + ":".join(["0000"] * 7), "no GID")],
)
def test_a_port_without_link_or_address_fails_where_it_is_wanted(
    state: str, gid: str, hint: str, tmp_path: Path
) -> None:
    port(tmp_path, state, gid)
    for protocol, status in (("rdma", Status.FAIL), ("auto", Status.WARN)):
        _, one = check_rdma({protocol}, tmp_path)
        assert one.status is status
        assert hint in one.hint


def test_a_gpu_is_told_with_its_driver(tmp_path: Path) -> None:
    assert check_gpu({"auto"}, tmp_path).status is Status.OK
    assert check_gpu({"cuda"}, tmp_path).status is Status.FAIL
    write(tmp_path / "dev/nvidia0", "")
    assert check_gpu({"cuda"}, tmp_path).value.startswith("1 without a driver")
    said = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23"
    write(tmp_path / "proc/driver/nvidia/version", said)
    found = check_gpu({"cuda"}, tmp_path)
    assert (found.status, found.value) == (Status.OK, "1 (driver 570.86.15)")


def test_the_peer_memory_module_matters_where_a_gpu_and_rdma_meet(tmp_path: Path) -> None:
    assert check_peer_memory(tmp_path).status is Status.OK
    port(tmp_path)
    write(tmp_path / "dev/nvidia0", "")
    assert check_peer_memory(tmp_path).status is Status.WARN
    write(tmp_path / "proc/modules", "nvidia_peermem 16384 0 - Live 0x0")
    assert check_peer_memory(tmp_path).value == "nvidia_peermem"


def test_free_hugepages_are_counted_by_size(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    write(folder / "free_hugepages", "3")
    write(folder / "nr_hugepages", "8")
    assert check_hugepages(tmp_path).value == "3 of 8 free of 2 MiB"

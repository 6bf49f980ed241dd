"""Checks of a host's devices: RDMA ports, GPUs and the module between them, memory.

Read from ``/sys``, ``/proc`` and ``/dev`` under ``root``; nothing is opened or changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pdctl.finding import Check, Status

ROOT = Path("/")
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def rdma_ports(root: Path = ROOT) -> list[Path]:
    """Return the folder of each port of each RDMA device."""
    return sorted((root / "sys/class/infiniband").glob("*/ports/*"))


def rdma_names(root: Path = ROOT) -> tuple[str, ...]:
    """Return the names of the RDMA checks of this host."""
    return ("rdma", *(_port_name(port) for port in rdma_ports(root)))


def check_rdma(protocols: set[str], root: Path = ROOT) -> Iterator[Check]:
    """Are there RDMA ports, are they up, and do they have an address?

    Args:
        protocols: ``transfer.protocol`` of this host's workers.
        root: of the file system.
    """
    ports = rdma_ports(root)
    is_wanted = "rdma" in protocols
    if not ports:
        value = "no RDMA device"
        if is_wanted:
            hint = "load its driver (lsmod, ibv_devices), or set transfer.protocol: tcp"
            yield Check("rdma", Status.FAIL, f"{value}, and transfer.protocol is rdma", hint)
        else:
            yield Check("rdma", Status.OK, f"{value}; pages go over TCP")
        return
    unused = protocols == {"tcp"}
    value = f"{len(ports)} ports" + (", not used: transfer.protocol is tcp" if unused else "")
    yield Check("rdma", Status.OK, value)
    for port in ports:
        yield _port(port, Status.FAIL if is_wanted else Status.WARN)


def _port(port: Path, bad: Status) -> Check:
    state = _read(port / "state").partition(": ")[2] or "unknown"
    gid = next((text for text in map(_read, sorted(port.glob("gids/*"))) if _is_set(text)), "")
    facts = [state, _read(port / "rate"), _read(port / "link_layer"), f"GID {gid or 'none'}"]
    value = ", ".join(filter(None, facts))
    name = _port_name(port)
    if state != "ACTIVE":
        return Check(name, bad, value, "the link is down: cable, switch port, subnet manager")
    if not gid:
        return Check(name, bad, value, "no GID: give the port an address (RoCE), or see opensm")
    return Check(name, Status.OK, value)


def _is_set(gid: str) -> bool:
    return bool(gid) and gid != NO_GID and gid != "fe80:0000:0000:0000:0000:0000:0000:0000"


def _port_name(port: Path) -> str:
    return f"rdma-{port.parents[1].name}-{port.name}"


def check_gpu(devices: set[str], root: Path = ROOT) -> Check:
    """Is there a GPU where the cluster file wants one?"""
    version = _read(root / "proc/driver/nvidia/version").partition("Module")[2].split()
    driver = next((word for word in version if word[0].isdigit()), "")
    cards = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    if cards and driver:
        return Check("gpu", Status.OK, f"{len(cards)} (driver {driver})")
    value = "no GPU" if not cards else f"{len(cards)} without a driver"
    if "cuda" in devices:
        return Check("gpu", Status.FAIL, f"{value}, and engine.device is cuda", "nvidia-smi")
    return Check("gpu", Status.OK, f"{value}; the engine computes on the CPU")


def check_peer_memory(root: Path = ROOT) -> Check:
    """May an RDMA device read and write a GPU's memory?"""
    name = "peer-memory"
    if not rdma_ports(root) or not list((root / "dev").glob("nvidia[0-9]*")):
        return Check(name, Status.OK, "not needed: no GPU beside an RDMA device")
    loaded = {line.split()[0] for line in _read(root / "proc/modules").splitlines() if line}
    module = next((module for module in PEER_MODULES if module in loaded), "")
    if module:
        return Check(name, Status.OK, module)
    hint = "modprobe nvidia_peermem; open kernel modules may do without, by DMA-BUF"
    return Check(name, Status.WARN, "no peer-memory module is loaded", hint)


def check_hugepages(root: Path = ROOT) -> Check:
    """How many huge pages are free? Nothing needs them; a pinned pool is mapped faster by them."""
    words = []
    for folder in sorted((root / "sys/kernel/mm/hugepages").glob("hugepages-*")):
        kib = int(folder.name.removeprefix("hugepages-").removesuffix("kB"))
        free, total = (_read(folder / f"{which}_hugepages") or "0" for which in ("free", "nr"))
        words.append(f"{free} of {total} free of {kib >> 10} MiB")
    return Check("hugepages", Status.OK, ", ".join(words) or "the kernel has none")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

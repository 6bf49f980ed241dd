"""Small named checks of a host: a status, the value that was found, and what to do about it.

A check never raises. What a check needs from a library that may crash runs in a process of its
own.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.key import load_key
from daemons.cluster.load import BOOTSTRAP_NAME, is_loopback, place_on_host
from daemons.cluster.models import cache_directory, model_directory
from daemons.engine.cores import shared_out
from pdctl import devices, neighbours, pairs, reach, software
from pdctl.client import Unreachable, call
from pdctl.errors import CommandError
from pdctl.finding import Check, Examination, Status, one
from pdctl.places import WORKERS, Place, places, settings
from pdctl.ports import is_free, listen_address
from pdctl.render import amount
from pdctl.runs import read_run, run_directory, state_directory
from pdctl.survey import located, phone_book
from pdctl.target import Target, find, this_host

NOFILE_ENOUGH = 4096  # descriptors: clients, peers and Mooncake's connections
DISK_ENOUGH_BYTES = 2 << 30
MEMLOCK_ENOUGH_BYTES = 1 << 30  # only RDMA pins memory
IMPORT_S = 60.0


def checks(config: Path | None, host: str | None, *, others: bool = False) -> Iterator[Check]:
    """Make every check; those of the cluster file only when it can be read.

    Args:
        config: the cluster file, None for the usual one.
        host: which host of it this is, None to find out.
        others: also how the other daemons are reached, and a write over every pair, where the
            phone book answers.
    """
    for examination in examinations(config, host, others=others):
        yield from examination.make()


def examinations(
    config: Path | None, host: str | None, *, others: bool = False
) -> Iterator[Examination]:
    """Yield what can be examined; arguments as of :func:`checks`."""
    yield one("python", check_python)
    yield one("mooncake", check_mooncake)
    yield one("versions", software.check_versions)
    yield one("wheels", _check_wheels)
    yield one("names", software.check_names)
    yield Examination(("nofile", "memlock"), check_limits)
    yield one("disk-cache", lambda: check_disk(cache_directory()))
    yield one("disk-state", lambda: check_disk(state_directory(), "disk-state"))
    yield one("peer-memory", devices.check_peer_memory)
    yield one("hugepages", devices.check_hugepages)
    yield one("cma", neighbours.check_cma)
    try:
        target = find(config)
        known = places(target.cluster)
        here = this_host(target.cluster, host)
    except (OperatorError, CommandError) as error:
        failed = Check("config", Status.FAIL, error.what, error.hint)
        yield one("config", lambda: failed)
        return
    value = f"{target.file.path} ({target.origin}), this is host {here}"
    yield one("config", lambda: Check("config", Status.OK, value))
    yield from _of_host(target, [place for place in known.values() if place.host == here])
    if others:
        yield from _of_others(target)


def _of_host(target: Target, ours: list[Place]) -> Iterator[Examination]:
    """Yield what the cluster file asks of this host."""
    own = [settings(target.cluster, place.instance) for place in ours if place.role in WORKERS]
    protocols = {each.transfer.protocol for each in own}
    wanted = {each.engine.device for each in own}
    yield Examination(devices.rdma_names(), lambda: devices.check_rdma(protocols))
    yield one("gpu", lambda: devices.check_gpu(wanted))
    yield one("key", lambda: check_key(target, ours))
    yield one("model", lambda: check_model(target))
    yield one("transfer-ports", lambda: check_transfer_ports(target, ours))
    yield one("threads", lambda: check_threads(target, ours))
    for place in ours:
        if place.port:
            yield one(f"port-{place.instance}", partial(check_port, target, place))


def _of_others(target: Target) -> Iterator[Examination]:
    """Yield what is seen of the cluster from here; only its silence when it is not up."""
    known = located(target.cluster)
    _, trouble = phone_book(known[BOOTSTRAP_NAME])
    if trouble:
        hint = "pdctl up; then pdctl doctor also looks at the other daemons and at every pair"
        silent = Check("phone-book", Status.WARN, trouble, hint)
        yield one("phone-book", lambda: silent)
        return
    yield Examination(reach.names(known), lambda: reach.check_all(known, target.file.hash))
    for prefill, decode in pairs_of(known):
        sing = partial(pairs.sing, target.cluster, prefill, decode)
        yield one(pairs.pair_name(prefill, decode), sing)


def pairs_of(known: dict[str, Place]) -> Iterator[tuple[Place, Place]]:
    """Yield every prefill with every decode that can be reached."""
    for prefill in known.values():
        for decode in known.values():
            roles = (prefill.role, decode.role)
            if roles == WORKERS and prefill.url and decode.url:
                yield prefill, decode


def _check_wheels() -> Check:
    found = devices.check_gpu(set()).value
    return software.check_wheels(software.installed(), found if "driver " in found else "")


def check_python() -> Check:
    """Is this interpreter one that we support?"""
    value = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Check("python", Status.OK, value)
    return Check("python", Status.FAIL, value, "use Python 3.11, 3.12 or 3.13")


def check_mooncake() -> Check:
    """Does the transfer engine load? Native code, so in a process of its own."""
    script = "import mooncake.engine; print(mooncake.engine.__file__)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("mooncake", Status.FAIL, f"no answer in {IMPORT_S:.0f} s", "scripts/install")
    if done.returncode == 0:
        return Check("mooncake", Status.OK, _mooncake_wheel())
    said = done.stderr.strip().splitlines()
    value = said[-1] if said else f"died with exit code {done.returncode}"
    if "cannot open shared object file" in value:
        hint = "install libibverbs1, libnuma1 and libcurl4; scripts/install does"
    else:
        hint = "pip install 'pd[cpu]', or cuda12, cuda13: exactly one; scripts/install picks"
    return Check("mooncake", Status.FAIL, value, hint)


def _mooncake_wheel() -> str:
    from importlib.metadata import distributions

    prefix = "mooncake-transfer-engine"
    found = [
        f"{name} {dist.version}"
        for dist in distributions()
        if (name := dist.metadata["Name"].lower()).startswith(prefix)
    ]
    return ", ".join(found) or "loads, of no known wheel"


def check_limits() -> Iterator[Check]:
    """Are the limits of this user wide enough?"""
    nofile, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = nofile == resource.RLIM_INFINITY
    low = not unlimited and nofile < NOFILE_ENOUGH
    hint = f"ulimit -n {NOFILE_ENOUGH * 4}, or LimitNOFILE= in the unit" if low else ""
    yield Check(
        "nofile", Status.WARN if low else Status.OK, "unlimited" if unlimited else str(nofile), hint
    )
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if memlock == resource.RLIM_INFINITY:
        yield Check("memlock", Status.OK, "unlimited")
        return
    if not has_rdma():
        yield Check("memlock", Status.OK, f"{amount(memlock)}, only RDMA would need more")
        return
    low = memlock < MEMLOCK_ENOUGH_BYTES
    hint = "RDMA pins the KV pool: ulimit -l unlimited, or LimitMEMLOCK=infinity" if low else ""
    yield Check("memlock", Status.FAIL if low else Status.OK, amount(memlock), hint)


def has_rdma() -> bool:
    """Say whether this host has an RDMA device."""
    return bool(devices.rdma_ports())


def check_disk(path: Path, name: str = "disk-cache") -> Check:
    """Is there room where models, or logs, are kept?"""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(name, Status.FAIL, f"{existing}: {error.strerror}")
    value = f"{amount(free)} free in {existing}"
    if not os.access(existing, os.W_OK):
        return Check(
            name, Status.FAIL, f"{existing} is not writable", "chown it, or set XDG_*_HOME"
        )
    if free < DISK_ENOUGH_BYTES:
        return Check(name, Status.WARN, value, "free some space; the embedded model takes 0.6 GiB")
    return Check(name, Status.OK, value)


def check_model(target: Target) -> Check:
    """Is the model where the file says?"""
    try:
        return Check("model", Status.OK, str(model_directory(target.cluster.model)))
    except OperatorError as error:
        return Check("model", Status.FAIL, error.what, error.hint)


def check_key(target: Target, ours: list[Place]) -> Check:
    """Is there a key, where others can reach the daemons of this host?"""
    key = load_key(target.cluster)
    if key is not None:
        return Check("key", Status.OK, f"set, hash {key.short_hash}, {key.origin}")
    listening = {listen_address(target.cluster, place.instance) for place in ours}
    outside = sorted(address for address in listening if not is_loopback(address))
    if not outside:
        return Check("key", Status.OK, "none; daemons listen on loopback only")
    value = f"none, and daemons listen on {', '.join(outside)}: anybody there is obeyed"
    return Check("key", Status.WARN, value, "pdctl keygen, then key_file in the cluster file")


def check_transfer_ports(target: Target, ours: list[Place]) -> Check:
    """Mooncake listens everywhere, and asks nobody who it is."""
    workers = [place.instance for place in ours if place.role in WORKERS]
    backends = {settings(target.cluster, name).transfer.backend for name in workers}
    if not backends & {"mooncake", "auto"}:
        return Check("transfer-ports", Status.OK, "no Mooncake on this host")
    value = "Mooncake listens on all addresses, ports 15000-17000, and no key protects them"
    hint = "a firewall, or IPAddressAllow= in the units: see THREAT_MODEL.md"
    return Check("transfer-ports", Status.WARN, value, hint)


def check_threads(target: Target, ours: list[Place]) -> Check:
    """Do the engines of this host ask for more threads than there are cores?"""
    cores = sorted(os.sched_getaffinity(0))
    workers = [place for place in ours if place.role in WORKERS]
    try:
        asked = sum(_threads(target, place, cores) for place in workers)
    except OperatorError as error:
        return Check("threads", Status.FAIL, error.what, error.hint)
    value = f"{asked} threads of {len(workers)} workers on {len(cores)} cores"
    if asked > len(cores):
        return Check("threads", Status.WARN, value, "lower engine.threads: they slow each other")
    return Check("threads", Status.OK, value)


def _threads(target: Target, place: Place, cores: list[int]) -> int:
    """Return what a worker's rank takes; 0 in the file is its share of the host."""
    engine = settings(target.cluster, place.instance).engine
    return shared_out(engine, cores, *place_on_host(target.cluster, place.instance)).threads


def check_port(target: Target, place: Place) -> Check:
    """Is the port free, or held by our own daemon?"""
    name = f"port-{place.instance}"
    address = listen_address(target.cluster, place.instance)
    if is_free(address, place.port):
        return Check(name, Status.OK, f"{place.where} is free")
    run = read_run(run_directory(target.cluster.name))
    child = run.child(place.instance) if run else None
    if child is not None and child.pid and child.process.is_alive:
        return Check(name, Status.OK, f"{place.where} is ours (pid {child.pid})")
    if _answers_like_ours(place):
        return Check(name, Status.OK, f"{place.where} is held by a daemon that answers /health")
    hint = f"stop that process, or set another port for {place.instance}"
    return Check(name, Status.FAIL, f"{place.where} is taken by another process", hint)


def _answers_like_ours(place: Place) -> bool:
    try:
        return call("GET", f"{place.url}/health").status in (200, 503)
    except Unreachable:
        return False

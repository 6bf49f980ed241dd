"""Read a cluster file, and work out one daemon's settings with the origin of each value."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import DEFAULT_HOST, Cluster, Settings
from daemons.protocol.topology import Role

SHARED = ("engine", "transfer", "timers")
BOOTSTRAP_NAME = "bootstrap"
LB_NAME = "lb"
PHONE_BOOK_PORT = 8998

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster file that was read: its content, where it lies, and a hash to compare hosts by."""

    path: Path
    cluster: Cluster
    hash: str  # first 12 hexadecimal digits of the file's sha256


def load(path: Path) -> ClusterFile:
    """Read and check a cluster file.

    Raises:
        OperatorError: no such file, not YAML, or not a cluster file; the text names the place.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise OperatorError(
            f"cannot read {path}: {error.strerror}", "give a cluster file with --config"
        ) from error
    try:
        cluster = msgspec.convert(_without_blanks(yaml.safe_load(raw)), Cluster)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: {error}", "configs/one-host.yaml is an example") from error
    _check_names(path, cluster)
    if cluster.key_file:
        at = path.resolve().parent / Path(cluster.key_file).expanduser()
        cluster = msgspec.structs.replace(cluster, key_file=str(at))
    return ClusterFile(path.resolve(), cluster, hashlib.sha256(raw).hexdigest()[:12])


def role_of(cluster: Cluster, instance: str) -> Role:
    """Return the role of an instance name.

    Raises:
        OperatorError: the file has no such instance.
    """
    if instance in cluster.prefill:
        return Role.PREFILL
    if instance in cluster.decode:
        return Role.DECODE
    if instance == BOOTSTRAP_NAME:
        return Role.BOOTSTRAP
    if instance == LB_NAME:
        return Role.LB
    names = ", ".join(instance_names(cluster))
    raise OperatorError(f"no daemon {instance} in the cluster file", f"it has: {names}")


def instance_names(cluster: Cluster) -> list[str]:
    """Return all instance names in starting order."""
    return [BOOTSTRAP_NAME, *cluster.prefill, *cluster.decode, LB_NAME]


def settings_of(cluster: Cluster, instance: str) -> tuple[Settings, dict[str, str]]:
    """Return the merged settings of a daemon, and for each dotted name the section it came from."""
    role = role_of(cluster, instance)
    origins: dict[str, str] = {}
    merged: Settings = {}
    if role in (Role.PREFILL, Role.DECODE):
        for section in SHARED:
            _merge(merged, {section: getattr(cluster, section)}, "", origins, section)
        own = (cluster.prefill if role is Role.PREFILL else cluster.decode)[instance]
        _merge(merged, own, "", origins, f"{role}.{instance}")
    else:
        own = cluster.bootstrap if role is Role.BOOTSTRAP else cluster.lb
        _merge(merged, own, "", origins, role.value)
    return merged, origins


def with_setting(file: ClusterFile, instance: str, name: str, *, value: object) -> ClusterFile:
    """Return the file as if the section of a worker had this setting; its hash stays.

    Raises:
        OperatorError: the file has no such instance.
    """
    cluster, role = file.cluster, role_of(file.cluster, instance).value
    workers = dict(getattr(cluster, role))
    workers[instance] = {**workers[instance], name: value}
    return replace(file, cluster=msgspec.structs.replace(cluster, **{role: workers}))


def read_settings(cluster: Cluster, instance: str, form: type[T]) -> T:
    """Return a daemon's settings in the form that its ``config.py`` defines.

    Raises:
        OperatorError: an unknown name, a wrong type or a value out of range, with its place.
    """
    merged, _ = settings_of(cluster, instance)
    try:
        return msgspec.convert(merged, form)
    except msgspec.ValidationError as error:
        raise OperatorError(
            f"{instance}: {error}", "pdctl config view lists every setting"
        ) from error


def address_of(cluster: Cluster, host: str) -> str:
    """Return the address of a host of the file.

    Raises:
        OperatorError: the file has no such host.
    """
    try:
        return cluster.hosts[host].address
    except KeyError:
        names = ", ".join(cluster.hosts)
        raise OperatorError(f"no host {host} in the cluster file", f"it has: {names}") from None


def place_on_host(cluster: Cluster, worker: str) -> tuple[int, int]:
    """Return which of its host's workers one is, from 0, and how many there are."""
    workers = cluster.prefill | cluster.decode
    host = workers[worker].get("host", DEFAULT_HOST)
    neighbours = [name for name, own in workers.items() if own.get("host", DEFAULT_HOST) == host]
    return neighbours.index(worker), len(neighbours)


def is_loopback(address: str) -> bool:
    """Say whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def phone_book_of(cluster: Cluster) -> tuple[str, int]:
    """Return address and port of the phone book, as others reach it.

    Raises:
        OperatorError: no such host, or no port that others could know.
    """
    section = cluster.bootstrap
    address = section.get("advertise") or address_of(cluster, section.get("host", DEFAULT_HOST))
    port = section.get("port", PHONE_BOOK_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise OperatorError(
            f"bootstrap: port is {port!r}", "the phone book needs a port that everybody knows"
        )
    return str(address), port


def phone_book_aliases(cluster: Cluster) -> frozenset[tuple[str, int]]:
    """Return other hosts and ports by which a client's body may name the phone book.

    Nobody ever connects to them: workers ask the phone book of :func:`phone_book_of` only.

    Raises:
        OperatorError: one is not ``host:port``.
    """
    given = cluster.bootstrap.get("aliases", ())
    found = set()
    for alias in given if isinstance(given, list | tuple) else (given,):
        host, _, port = str(alias).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OperatorError(f"bootstrap: alias {alias!r} is not host:port", "n1.example:8998")
        found.add((host.removeprefix("[").removesuffix("]"), int(port)))
    return frozenset(found)


def _without_blanks(document: object) -> object:
    """A section or an instance that is named and left blank (``p0:``) has all defaults."""
    if not isinstance(document, dict):
        return document
    filled = {name: section for name, section in document.items() if section is not None}
    for role in (Role.PREFILL.value, Role.DECODE.value):
        if isinstance(instances := filled.get(role), dict):
            filled[role] = {name: own if own is not None else {} for name, own in instances.items()}
    return filled


def _check_names(path: Path, cluster: Cluster) -> None:
    names = instance_names(cluster)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OperatorError(f"{path}: {', '.join(twice)} names two daemons", "rename one of them")


def _merge(
    into: Settings, more: Mapping[str, Any], prefix: str, origins: dict[str, str], origin: str
) -> None:
    for name, value in more.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping):
            nested = into.setdefault(name, {})
            if isinstance(nested, dict):
                _merge(nested, value, f"{dotted}.", origins, origin)
                continue
        into[name] = value
        origins[dotted] = origin

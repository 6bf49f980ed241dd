"""Which files a host must have for its part of a cluster file to run under systemd.

Pure: from a cluster file and the templates that travel with pdctl to paths and texts. Paths are
absolute on the host; where an image is made instead (``--root``), only the writing differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from daemons.cluster.key import CREDENTIAL
from daemons.cluster.load import ClusterFile, settings_of
from daemons.protocol.topology import Role
from pdctl.places import Place, places, settings
from pdctl.units import TARGET, unit_of

UNITS = Path("/etc/systemd/system")
CONFIG = Path("/etc/pd/cluster.yaml")
USERS = Path("/etc/sysusers.d/pd.conf")
CACHE = Path("/var/cache/pd")
PREFIX = Path("/opt/pd")  # as the templates have it
USER = "pd"
STOP_LEAD_S = 30  # how much longer than a drain systemd waits before it kills
OURS = "# Written by pdctl install from the cluster file; pdctl diff shows what would change.\n"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file; with ``link`` it is a symbolic link to that path and has no text."""

    path: Path
    text: str = ""
    link: str = ""
    mode: int = 0o644

    @property
    def is_secret(self) -> bool:
        """Whether its text must not be shown."""
        return self.mode & 0o077 == 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator chooses."""

    host: str  # name in the cluster file
    prefix: Path = PREFIX  # of the virtual environment
    user: str = USER


def wanted(file: ClusterFile, choice: Choice, templates: Mapping[str, str]) -> list[Wanted]:
    """Return all files of a host, in the order in which they are to be written.

    Args:
        file: the cluster file; its text becomes ``/etc/pd/cluster.yaml``.
        choice: host, prefix and user.
        templates: units as they travel with pdctl, by file name.

    Raises:
        OperatorError: settings that a daemon of this host does not take.
    """
    here = [place for place in places(file.cluster).values() if place.host == choice.host]
    found = [
        Wanted(USERS, f'{OURS}u {choice.user} - "Prefill/decode serving" {CACHE}\n'),
        Wanted(CONFIG, file.path.read_text()),
    ]
    if here and here[0].key is not None and (key := key_path(file)) is not None:
        found.append(Wanted(key, here[0].key.secret.decode() + "\n", mode=0o600))
    for name, text in sorted(templates.items()):
        found.append(Wanted(UNITS / name, _adapted(text, choice)))
    for place in here:
        found += _of_place(file, place)
    found.append(_link(f"multi-user.target.wants/{TARGET}", TARGET))
    return found


def key_path(file: ClusterFile) -> Path | None:
    """Return where the installed cluster file looks for its key; None where it names none."""
    if not file.cluster.key_file:
        return None
    named = yaml.safe_load(file.path.read_text())["key_file"]
    return CONFIG.parent / Path(named).expanduser()


def units_of_host(file: ClusterFile, host: str) -> list[str]:
    """Return the units that run on a host, sockets before services, in starting order."""
    here = [place for place in places(file.cluster).values() if place.host == host]
    sockets = [_socket_of(place) for place in here if _has_socket(place)]
    return [*sockets, *(unit_of(place.role, place.instance) for place in here)]


def _adapted(text: str, choice: Choice) -> str:
    return (
        text.replace(f"{PREFIX}/", f"{choice.prefix}/")
        .replace(f"User={USER}\n", f"User={choice.user}\n")
        .replace(f"Group={USER}\n", f"Group={choice.user}\n")
    )


def _of_place(file: ClusterFile, place: Place) -> Iterator[Wanted]:
    unit = unit_of(place.role, place.instance)
    yield Wanted(UNITS / f"{unit}.d" / "10-pd.conf", OURS + "".join(_drop_in(file, place)))
    yield _link(f"{TARGET}.wants/{unit}", _template_of(unit))
    if _has_socket(place):
        socket = _socket_of(place)
        listens = f"[Socket]\nListenStream=\nListenStream={_listens_on(file, place)}\n"
        yield Wanted(UNITS / f"{socket}.d" / "10-pd.conf", OURS + listens)
        yield _link(f"sockets.target.wants/{socket}", socket)
        yield _link(f"{TARGET}.wants/{socket}", socket)


def _drop_in(file: ClusterFile, place: Place) -> Iterator[str]:
    own = settings(file.cluster, place.instance)
    yield f"[Unit]\nDescription=pd {place.instance} of cluster {file.cluster.name}\n[Service]\n"
    if place.key is not None:
        yield f"LoadCredential={CREDENTIAL}:{key_path(file)}\n"
    if place.role not in (Role.PREFILL, Role.DECODE):
        return
    yield f"TimeoutStopSec={round(own.timers.drain_s) + STOP_LEAD_S}\n"
    merged, _ = settings_of(file.cluster, place.instance)
    if cores := _cores(merged):
        yield f"CPUAffinity={cores}\n"
    placement = own.placement
    if placement.numa_nodes:
        yield f"NUMAPolicy=bind\nNUMAMask={placement.numa_nodes}\n"
    if placement.gpus:
        yield f"Environment=CUDA_VISIBLE_DEVICES={placement.gpus}\n"


def _cores(merged: Mapping[str, Any]) -> str:
    """Return the cores that the engine is bound to, in systemd's words."""
    cores = merged.get("engine", {}).get("cores", "")
    return " ".join(str(cores).split(",")) if cores not in ("", "auto") else ""


def _has_socket(place: Place) -> bool:
    """A port that everybody knows can be held open for its daemon by systemd."""
    return place.role in (Role.BOOTSTRAP, Role.LB) and place.port != 0


def _socket_of(place: Place) -> str:
    return unit_of(place.role, place.instance).replace(".service", ".socket")


def _listens_on(file: ClusterFile, place: Place) -> str:
    own = settings(file.cluster, place.instance)
    address = own.bind or file.cluster.hosts[place.host].address
    return f"[{address}]:{place.port}" if ":" in address else f"{address}:{place.port}"


def _template_of(unit: str) -> str:
    name, at, _ = unit.partition("@")
    return f"{name}@.service" if at else unit


def _link(place: str, unit: str) -> Wanted:
    return Wanted(UNITS / place, link=str(UNITS / unit))

"""The systemd units of the daemons: their names, and whether they are installed here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daemons.protocol.topology import Role

UNIT_DIRECTORIES = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"))
TARGET = "pd.target"


def unit_of(role: Role, instance: str) -> str:
    """Return the unit of a daemon: ``pd-prefill@p0.service``, ``pd-lb.service``."""
    if role in (Role.PREFILL, Role.DECODE):
        return f"pd-{role.value}@{instance}.service"
    return f"pd-{role.value}.service"


def installed(directories: Sequence[Path] = UNIT_DIRECTORIES) -> bool:
    """Say whether systemd runs here and knows our target."""
    return Path("/run/systemd/system").is_dir() and any(
        (directory / TARGET).exists() for directory in directories
    )

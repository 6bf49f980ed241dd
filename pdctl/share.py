"""Finds the files that travel with pdctl: ``configs/`` and ``systemd/``.

In an installed wheel they lie beside this module, in a checkout at its root.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def share_directory(name: str, *, here: Path = _HERE) -> Path:
    """Return the packaged directory ``name``.

    Raises:
        FileNotFoundError: neither the wheel nor a checkout has it.
    """
    for candidate in (here / "share" / name, here.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is neither in {here / 'share'} nor in {here.parent}")


def example_config() -> Path:
    """Return the cluster file that is used when none is named anywhere."""
    return share_directory("configs") / "one-host.yaml"

"""Checks of what is installed: versions that fit each other, and names that others also use.

Read from the metadata of packages; torch and the like are never imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from pdctl.finding import Check, Status

MOONCAKES = {
    "mooncake-transfer-engine-non-cuda": "",
    "mooncake-transfer-engine": "12",
    "mooncake-transfer-engine-cuda13": "13",
}  # the CUDA that each build is for
SHOWN = ("pd", "torch", "pyzmq", "aiohttp", "msgspec")
OURS = ("daemons", "pdctl")


def installed() -> dict[str, str]:
    """Return every installed distribution with its version."""
    return {each.metadata["Name"].lower(): each.version for each in distributions()}


def check_versions() -> Check:
    """What is installed?"""
    found, missing = [], []
    for name in SHOWN:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        hint = "scripts/install, or pip install the wheel anew"
        return Check("versions", Status.FAIL, f"not installed: {', '.join(missing)}", hint)
    return Check("versions", Status.OK, ", ".join(found))


def check_wheels(packages: Mapping[str, str], driver: str) -> Check:
    """Are torch and Mooncake built for the same CUDA, and is there one Mooncake only?

    Args:
        packages: installed distributions with their versions.
        driver: what the GPU check found, "" without a GPU.
    """
    mooncakes = [name for name in MOONCAKES if name in packages]
    torch = packages.get("torch", "")
    built = torch.partition("+cu")[2][:2] if "+cu" in torch else ""
    value = f"torch {torch or 'missing'}, {', '.join(mooncakes) or 'no Mooncake'}"
    hint = "exactly one of pd[cpu], pd[cuda12], pd[cuda13]; scripts/install picks"
    if len(mooncakes) != 1 or not torch:
        return Check("wheels", Status.FAIL, value, hint)
    cuda = MOONCAKES[mooncakes[0]]
    if built and cuda and built != cuda:
        return Check("wheels", Status.FAIL, f"{value}: CUDA {built} and CUDA {cuda}", hint)
    if driver and not built:
        return Check("wheels", Status.WARN, f"{value}: a GPU, and torch for the CPU only", hint)
    return Check("wheels", Status.OK, value)


def check_names(here: Path | None = None) -> Check:
    """Does another package bring a top-level ``daemons`` or ``pdctl``, which would hide ours?"""
    root = here or Path(__file__).resolve().parents[1]
    hint = "uninstall it, or give pd an environment of its own: pdctl.seed makes /opt/pd"
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parents[1] != root:
            value = f"import {name} finds {origin or 'nothing'}, not {root / name}"
            return Check("names", Status.FAIL, value, hint)
        others = [
            str(Path(folder) / name)
            for folder in sys.path
            if _brings(folder, name) and Path(folder).resolve() != root
        ]
        if others:
            return Check("names", Status.WARN, f"{others[0]} is hidden by {root / name}", hint)
    return Check("names", Status.OK, f"daemons and pdctl are ours, in {root}")


def _brings(folder: str, name: str) -> bool:
    return (Path(folder or ".") / name / "__init__.py").exists()

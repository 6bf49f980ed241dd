"""From a wheel to a host that serves, with nothing there but Python: the standard library only.

    PYTHONPATH=pd-0.1.0-py3-none-any.whl python3 -m pdctl.seed --extra cpu --config cluster.yaml

A wheel is a zip file, which Python can import from. This makes a virtual environment, lets pip
install the very wheel into it, and hands over to the ``pdctl install`` that is in there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PREFIX = Path("/opt/pd")
ABOUT = "Install pd from a wheel into a virtual environment, then run its pdctl install."
EXTRAS = ("cpu", "cuda12", "cuda13")


def wheel_of(module_file: str) -> Path | None:
    """Return the wheel that a module was imported from, None when it was from a folder."""
    path = Path(module_file).absolute()
    return next((parent for parent in path.parents if parent.suffix == ".whl"), None)


def commands(prefix: Path, wheel: Path, extra: str, python: str) -> list[list[str]]:
    """Return the commands that put ``wheel`` into a virtual environment at ``prefix``."""
    own = str(prefix / "bin/python")
    make = [] if (prefix / "pyvenv.cfg").exists() else [[python, "-m", "venv", str(prefix)]]
    pip = [own, "-m", "pip", "install", "--quiet", "--upgrade", f"{wheel}[{extra}]"]
    return [*make, pip]


def main(argv: Sequence[str] | None = None) -> int:
    """Install the software and run ``pdctl install`` with what flags are left."""
    parser = argparse.ArgumentParser(prog="pdctl.seed", description=ABOUT)
    parser.add_argument("--prefix", type=Path, default=PREFIX, help="the virtual environment")
    parser.add_argument("--wheel", type=Path, help="by default the one that this was run from")
    parser.add_argument("--extra", choices=EXTRAS, default="cpu", help="which Mooncake build")
    parser.add_argument("--only-software", action="store_true", help="do not run pdctl install")
    flags, rest = parser.parse_known_args(argv)
    wheel = flags.wheel or wheel_of(__file__)
    if wheel is None or not wheel.is_file():
        return _tell("no wheel to install", "--wheel FILE, or run it with PYTHONPATH=FILE.whl")
    for command in commands(flags.prefix, wheel.absolute(), flags.extra, sys.executable):
        print(f"seed: {' '.join(command)}", file=sys.stderr, flush=True)
        if subprocess.run(command, check=False, env=_bare(os.environ)).returncode:
            return _tell(f"failed: {' '.join(command)}", "its words are above")
    if flags.only_software:
        return 0
    install = [str(flags.prefix / "bin/pdctl"), "install", "--prefix", str(flags.prefix), *rest]
    return subprocess.run(install, check=False, env=_bare(os.environ)).returncode


def _bare(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave our own way into the wheel out of what the new environment sees."""
    return {name: value for name, value in environ.items() if name != "PYTHONPATH"}


def _tell(what: str, hint: str) -> int:
    print(f"seed: {what}\nhint: {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

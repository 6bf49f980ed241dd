"""pd on a machine: the wheel in, services out."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.systemd.machine import Machine

PDCTL = "/opt/pd/bin/pdctl"
PACKAGES = "/srv/packages"
INSTALL_S = 240.0  # a virtual environment and a wheel: ten seconds of a processor
ASK = {
    "model": "x",
    "prompt": "one two three",
    "max_tokens": 8,
    "temperature": 0,
}


@dataclass(frozen=True, slots=True)
class Installed:
    """A machine with pd's services."""

    machine: Machine

    def pdctl(
        self, *words: str, within_s: float = 90.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the installed pdctl inside."""
        return self.machine.run(PDCTL, *words, within_s=within_s, check=check)

    def main_pid(self, unit: str) -> int:
        """Return the main process of a unit, as the machine counts."""
        return int(self.machine.show(unit, "MainPID"))

    def ask(self, url: str = "http://127.0.0.1:8000", **more: Any) -> tuple[int, Any]:
        """Post a completion to pd-lb from inside; returns status (0: no answer) and JSON."""
        done = self.machine.run(
            "curl", "--silent", "--max-time", "30", "--write-out", "\n%{http_code}",
            "--header", "Content-Type: application/json",
            "--data", json.dumps({**ASK, **more}), f"{url}/v1/completions", check=False,
        )  # fmt: skip
        body, _, status = done.stdout.rpartition("\n")
        return int(status or 0), json.loads(body) if body else None


def installed(machine: Machine, cluster: str, key: str = "") -> Installed:
    """Install pd from its wheel, with ``cluster`` as the cluster file, and start nothing.

    Where the file names a key and ``key`` is "", one is made.

    Packages that pd depends on are those of the tests' environment: nothing is downloaded.
    """
    machine.write("/etc/cluster.yaml", cluster)
    # Set for pip by its environment: the wheel itself, without its dependencies.
    seed = (
        "PYTHONPATH=$(echo /srv/wheel/*.whl) PIP_NO_DEPS=1 PIP_NO_INDEX=1 python3.11 -m pdctl.seed"
    )
    machine.run("sh", "-c", f"{seed} --only-software", within_s=INSTALL_S)
    site = machine.run("sh", "-c", "echo /opt/pd/lib/python3*/site-packages").stdout.strip()
    machine.write(f"{site}/packages.pth", f"{PACKAGES}\n")
    there = Installed(machine)
    if key:
        machine.write("/etc/cluster.key", key)
        machine.run("chmod", "600", "/etc/cluster.key")
    elif "key_file" in cluster:
        there.pdctl("keygen", "/etc/cluster.key")
    there.pdctl("install", "--config", "/etc/cluster.yaml", "--yes")
    return there

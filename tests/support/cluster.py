"""A whole cluster on loopback for live tests: real daemons, brought up and down by pdctl.

Ports are 0 except for the phone book's, which everybody must know: it is one of ``ports``.
State and logs lie in a folder of the test's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from daemons.cluster.key import ClusterKey, load_key
from daemons.cluster.load import load
from daemons.protocol.topology import Role
from daemons.runtime.guard import bearer
from daemons.runtime.http import url_of
from tests.support.ports import free_port

ADDRESS = "127.0.0.1"  # of the host, where a test names none; pytest --address sets it
UP_S = 120
DOWN_S = 60
HTTP_S = 120.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is up."""

    file: Path
    environment: dict[str, str]
    lb: str  # base URL
    book: str  # base URL
    key: ClusterKey | None = None

    def pdctl(self, *words: str, within_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run pdctl against this cluster; the result is the caller's to judge."""
        argv = [sys.executable, "-m", "pdctl", *words, "--config", str(self.file)]
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=within_s
        )

    def instances(self) -> dict[str, dict[str, Any]]:
        """Return what the phone book lists, by instance."""
        return {
            row["instance"]: row
            for row in get(f"{self.book}/instances", headers=bearer(self.key, Role.BOOTSTRAP))
        }

    def epochs(self) -> dict[str, int]:
        """Return the life that each listed instance is in."""
        return {name: row["epoch"] for name, row in self.instances().items()}

    def url(self, instance: str) -> str:
        """Return the base URL of a worker."""
        row = self.instances()[instance]
        return url_of(row["http_host"], row["http_port"])

    def status(self, instance: str) -> dict[str, Any]:
        """Return a worker's own status."""
        return get(f"{self.url(instance)}/status", headers=bearer(self.key, Role.PREFILL))

    def daemon_pids(self, instance: str) -> list[int]:
        """Return the processes of any daemon, a front before its rank."""
        role = {"bootstrap": "bootstrap", "lb": "lb"}.get(instance)
        ours = [(pid, argv) for pid, argv in _processes() if str(self.file) in argv]
        of_it = [
            (pid, argv)
            for pid, argv in ours
            if (f"daemons.{role}" in argv if role else _names(argv, instance))
        ]
        return [pid for pid, _ in sorted(of_it, key=lambda found: "--link" in found[1])]

    def is_idle(self, instance: str) -> bool:
        """Say whether every pool of a worker is as at its start, but for what it caches."""
        try:
            status = self.status(instance)
        except (OSError, KeyError):
            return False
        rooms = sum(status["rooms"].values())
        pages = status["pages"]["free"] + status["pages"]["cached"] == status["pages_total"]
        rows = status["rows"]["free"] == sum(status["rows"].values())
        window = status["window_pages"]  # {}: no layer has pages of its own
        unused = window.get("free", 0) + window.get("cached", 0) == sum(window.values())
        return rooms == 0 and pages and rows and unused


def get(url: str, within_s: float = 5.0, *, headers: dict[str, str] | None = None) -> Any:
    """Return the JSON of a GET."""
    request = urllib.request.Request(url, headers=headers or {})
    with urllib.request.urlopen(request, timeout=within_s) as answer:
        return json.load(answer)


def post(url: str, body: dict[str, Any], within_s: float = HTTP_S) -> tuple[int, Any]:
    """Return status and JSON of a POST, whatever the status."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=within_s) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def events(url: str, body: dict[str, Any], within_s: float = HTTP_S) -> Iterator[str]:
    """Yield the data of each event of a streamed POST, the closing [DONE] too."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=within_s) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()


def eventually(what: Callable[[], T], within_s: float = 60.0) -> T:
    """Return the first true value of ``what``, asking again until the deadline."""
    deadline = time.monotonic() + within_s
    while True:
        value = what()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.05)


@contextlib.contextmanager
def running(folder: Path, model: str, **sections: Any) -> Iterator[Cluster]:
    """Bring a cluster up; ``sections`` go into its file over one p0 and one d0."""
    port = free_port(sections.get("hosts", {}).get("local", {}).get("address", ADDRESS))
    document: dict[str, Any] = {
        "name": f"t{os.getpid()}-{port}",
        "model": model,
        "bootstrap": {"port": port},
        "lb": {"port": 0},
        "engine": {"threads": 1, "kv_tokens": 8192},
        "transfer": {"checksum": "all"},
        "hosts": {"local": {"address": ADDRESS}},
        "prefill": {"p0": {}},
        "decode": {"d0": {}},
    }
    for name, section in sections.items():
        merged = isinstance(section, dict)
        document[name] = {**document.get(name, {}), **section} if merged else section
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(document))
    state = folder / "state"
    state.mkdir(mode=0o700)
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    address = document["hosts"]["local"]["address"]
    book = url_of(address, port)
    key = load_key(load(file).cluster)
    cluster = Cluster(file, environment, "", book, key)
    try:
        came = cluster.pdctl("up", "--detach", "--timeout", str(UP_S), within_s=UP_S + 30)
        assert came.returncode == 0, f"pdctl up: {came.stderr}\n{_logs(state)}"
        lb = cluster.instances()["lb"]
        yield Cluster(file, environment, url_of(lb["http_host"], lb["http_port"]), book, key)
    finally:
        gone = cluster.pdctl("down", "--yes", within_s=DOWN_S + 30)
    assert gone.returncode == 0, gone.stderr
    assert not [pid for pid, argv in _processes() if str(file) in argv]


def kill(pid: int) -> None:
    """End a process at once."""
    os.kill(pid, signal.SIGKILL)


def _names(argv: list[str], instance: str) -> bool:
    return "--instance" in argv and argv[argv.index("--instance") + 1] == instance


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), words


def _logs(state: Path) -> str:
    tails = []
    for log in sorted(state.rglob("*.log")):
        tails.append(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]))
    return "\n".join(tails)

"""What a balancer adds: pd-lb beside sglang-router and a bare aiohttp proxy, over the same workers.

- Every balancer is pinned to the same cores (``--cores``), workers and clients to the others.
- All are up from beginning to end; short runs take turns, ``--rounds`` times; the table shows
  medians of rounds. ``direct`` asks the decode worker without any balancer.
- CPU per answer counts the balancer's processes only, and hardly moves with what else runs here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
CACHE = Path.home() / ".cache" / "pd-bench" / "sgl-router"
ROUTER = ("sglang-router==0.3.2", "setproctitle", "aiohttp", "fastapi", "orjson", "uvicorn")
TICKS = os.sysconf("SC_CLK_TCK")
READY_S = 60.0


@dataclass(frozen=True)
class Scene:
    """One kind of load."""

    name: str
    clients: int
    stream: bool


SCENES = (
    Scene("whole c=1", 1, stream=False),
    Scene("whole c=64", 64, stream=False),
    Scene("stream c=1", 1, stream=True),
    Scene("stream c=64", 64, stream=True),
    Scene("stream c=100", 100, stream=True),
    Scene("stream c=1000", 1000, stream=True),
)


@dataclass(frozen=True)
class Target:
    """An address to ask, and the processes behind it that count."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None


@dataclass(frozen=True)
class Figures:
    """Of one run; times in milliseconds, CPU in microseconds."""

    answers_per_s: float
    first_p50: float
    first_p99: float
    whole_p50: float
    whole_p99: float
    gap_p99: float
    cpu_us: float
    failures: int


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def started(argv: list[str], cores: set[int], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process on some cores to the end of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(port: int, path: str = "/health") -> None:
    """Return when ``path`` answers 200."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing healthy at port {port}")
        time.sleep(0.1)


def cpu_s(process: subprocess.Popen[bytes] | None) -> float:
    """Return the processor time of a process and its children, in seconds."""
    if process is None:
        return 0.0
    total = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            if os.getsid(pid) == process.pid:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
    return total / TICKS


def router_python() -> Path | None:
    """Return the interpreter that has sglang-router, installed apart from ours; None without."""
    python = CACHE / "bin" / "python"
    if not python.exists():
        made = [sys.executable, "-m", "venv", str(CACHE)]
        got = [str(python), "-m", "pip", "install", "-q", *ROUTER]
        if subprocess.run(made).returncode or subprocess.run(got).returncode:
            return None
    return python


def cluster_file(folder: Path, port: int, prefill: int, decode: int, workers: int) -> Path:
    """Return the cluster file of the balancer under measurement."""
    file = folder / "cluster.json"
    listed = [
        {"instance": name, "role": role, "address": HOST, "port": at}
        for name, role, at in (("p0", "prefill", prefill), ("d0", "decode", decode))
    ]
    lb: dict[str, Any] = {
        "port": port, "static_workers": listed, "max_connections": 8192,
        "max_rooms_per_prefill": 8192, "max_rooms_per_decode": 8192,
    }  # fmt: skip
    if workers > 1:
        lb["processes"] = workers
    file.write_text(json.dumps({"name": "bench", "bootstrap": {"port": free_port()}, "lb": lb}))
    return file


@contextlib.contextmanager
def targets(flags: argparse.Namespace, ours: set[int], rest: set[int]) -> Iterator[list[Target]]:
    """Bring workers and balancers up."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-lb-")))

        def start(name: str, cores: set[int], *argv: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(started(list(argv), cores, folder / f"{name}.log"))

        places = {role: free_port() for role in ("prefill", "decode")}
        urls = {role: f"http://{HOST}:{port}" for role, port in places.items()}
        for role, port in places.items():
            start(
                role, rest, sys.executable, "-m", "tests.bench.lb_worker", role,
                "--port", str(port), "--events", str(flags.events), "--gap", str(flags.gap),
            )  # fmt: skip
            wait_for(port)
        found = [Target("direct", places["decode"], None)]
        port = free_port()
        file = cluster_file(folder, port, places["prefill"], places["decode"], flags.workers)
        process = start("pd-lb", ours, sys.executable, "-m", "daemons.lb", "--config", str(file))
        found.append(Target("pd-lb", port, process))
        port = free_port()
        process = start(
            "aiohttp", ours, sys.executable, "-m", "tests.bench.lb_aiohttp", "--port", str(port),
            "--prefill", urls["prefill"], "--decode", urls["decode"],
        )  # fmt: skip
        found.append(Target("aiohttp proxy", port, process))
        if (python := router_python()) is not None:
            port = free_port()
            process = start(
                "sglang-router", ours, str(python), "-m", "sglang_router.launch_router",
                "--pd-disaggregation", "--prefill", urls["prefill"], "8998", "--decode",
                urls["decode"], "--host", HOST, "--port", str(port), "--policy", "random",
                "--log-level", "warn", "--prometheus-port", str(free_port()),
            )  # fmt: skip
            found.append(Target("sglang-router", port, process))
        for target in found:
            wait_for(target.port)
        yield found


def run(target: Target, scene: Scene, flags: argparse.Namespace, rest: set[int]) -> Figures:
    """Measure once."""
    spread = flags.events * flags.gap if scene.stream else 0.0
    argv = [
        sys.executable, "-m", "tests.bench.lb_load", "--port", str(target.port),
        "--clients", str(scene.clients), "--seconds", str(flags.seconds),
        "--warm", str(flags.warm), "--spread", str(spread),
        *(["--stream"] if scene.stream else []),
    ]  # fmt: skip
    before = cpu_s(target.process)
    done = subprocess.run(
        argv, capture_output=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, rest)
    )
    used = cpu_s(target.process) - before
    said = json.loads(done.stdout)
    answers = len(said["first_s"])
    # CPU is of the whole run, and so is its number of answers
    share = flags.seconds / (flags.seconds + flags.warm + spread)
    return Figures(
        answers / flags.seconds,
        *(1e3 * at(said["first_s"], part) for part in (0.5, 0.99)),
        *(1e3 * at(said["whole_s"], part) for part in (0.5, 0.99)),
        1e3 * at(said["gap_s"], 0.99),
        1e6 * used * share / max(answers, 1),
        said["failures"],
    )


def at(values: list[float], part: float) -> float:
    """Return a quantile; nan of nothing."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def medians(rounds: list[Figures]) -> Figures:
    """Return the median of each figure, the sum of failures."""
    told = [asdict(one) for one in rounds]
    values = {name: statistics.median(one[name] for one in told) for name in told[0]}
    values["failures"] = sum(one["failures"] for one in told)
    return Figures(**values)


def show(table: dict[str, dict[str, Figures]]) -> None:
    """Print it; what balancers add is against ``direct``."""
    for scene, rows in table.items():
        direct = rows["direct"]
        print(f"\n{scene}\n{'':16}{'answers/s':>10}{'cpu us':>9}{'+TTFT p50':>11}{'p99':>8}"
              f"{'+whole p50':>12}{'p99':>8}{'gap p99':>9}{'failed':>8}")  # fmt: skip
        for name, row in rows.items():
            added = [
                getattr(row, what) - getattr(direct, what)
                for what in ("first_p50", "first_p99", "whole_p50", "whole_p99")
            ]
            print(f"{name:16}{row.answers_per_s:10.0f}{row.cpu_us:9.0f}{added[0]:11.2f}"
                  f"{added[1]:8.2f}{added[2]:12.2f}{added[3]:8.2f}{row.gap_p99:9.1f}"
                  f"{row.failures:8d}")  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="scripts/bench lb", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--warm", type=float, default=0.5, help="before it counts")
    parser.add_argument("--events", type=int, default=8, help="of a stream")
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between two events")
    parser.add_argument("--workers", type=int, default=1, help="processes of pd-lb")
    parser.add_argument("--cores", help="of the balancer, e.g. 1 or 0,1; default: the last one")
    parser.add_argument("--scene", action="append", help="only these, by the beginning of a name")
    parser.add_argument("--json", type=Path, help="where samples go")
    flags = parser.parse_args(argv)
    every = os.sched_getaffinity(0)
    ours = {int(one) for one in flags.cores.split(",")} if flags.cores else {max(every)}
    rest = (every - ours) or every
    wanted = [
        scene for scene in SCENES
        if not flags.scene or any(scene.name.startswith(one) for one in flags.scene)
    ]  # fmt: skip
    samples: dict[str, dict[str, list[Figures]]] = {}
    with targets(flags, ours, rest) as found:
        for _ in range(flags.rounds):
            for scene in wanted:
                for target in found:
                    rounds = samples.setdefault(scene.name, {}).setdefault(target.name, [])
                    rounds.append(run(target, scene, flags, rest))
    table = {
        scene: {name: medians(rounds) for name, rounds in rows.items()}
        for scene, rows in samples.items()
    }
    print(
        f"pd-lb on cores {sorted(ours)}, the rest on {sorted(rest)}, load {os.getloadavg()[0]:.1f}"
    )
    print("times in ms, added to direct; cpu per answer; medians of rounds")
    show(table)
    if flags.json:
        flags.json.parent.mkdir(parents=True, exist_ok=True)
        told = {
            "machine": platform.platform(), "python": platform.python_version(),
            "cores": os.cpu_count(), "load": os.getloadavg(), "settings": vars(flags),
            "samples": {
                scene: {name: [asdict(one) for one in rounds] for name, rounds in rows.items()}
                for scene, rows in samples.items()
            },
        }  # fmt: skip
        flags.json.write_text(json.dumps(told, default=str, indent=1))
    return 0

"""Others' programs, as they come from PyPI, each in a virtual environment of its own.

They lie in the user's cache, since they want other packages than ours. ``scripts/interop`` brings
them; a test that finds one missing is skipped and says so.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.ports import free_port

HOME = Path("~/.cache/pd/others").expanduser()
PROGRAMS = {
    "sglang-router": "sglang-router==0.3.2",
    "smg": "smg==1.13.0",
    "locust": "locust==2.47.0",
}
UP_S = 60.0
DOWN_S = 10.0


def program(name: str, script: str) -> Path | None:
    """Return a program's path, None where it is not installed."""
    path = HOME / PROGRAMS[name] / "bin" / script
    return path if path.exists() else None


def install(name: str) -> None:
    """Bring a program, unless it is there.

    Raises:
        subprocess.CalledProcessError: no package index, or not this package.
    """
    venv = HOME / PROGRAMS[name]
    if (venv / "installed").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    subprocess.run([str(venv / "bin/pip"), "install", "-q", PROGRAMS[name]], check=True)
    (venv / "installed").touch()


def router_argv(
    kind: str, prefills: Sequence[tuple[str, int]], decodes: Sequence[str]
) -> list[str]:
    """Return the command of a router, without its address; prefills are URL and bootstrap port."""
    name = "smg" if kind == "smg" else "sglang-router"
    python = program(name, "python")
    assert python is not None
    argv = [str(python), "-m"]
    argv += ["smg.launch_router"] if kind == "smg" else ["sglang_router.launch_router"]
    argv += ["--mini-lb"] if kind == "mini-lb" else []
    argv += ["--pd-disaggregation", "--policy", "random", "--log-level", "warn"]
    for url, port in prefills:
        argv += ["--prefill", url, str(port)]
    for url in decodes:
        argv += ["--decode", url]
    return argv


@contextlib.contextmanager
def routing(argv: Sequence[str], log: Path) -> Iterator[str]:
    """Run a router until the end; yields its base URL once it is ready."""
    port, metrics = free_port(), free_port()
    own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    with log.open("wb") as out, subprocess.Popen([*argv, *own], stdout=out, stderr=out) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(f"{url}/health", process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(DOWN_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + UP_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        is_running = process.poll() is None and time.monotonic() < deadline
        assert is_running, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


def main() -> int:
    """Bring all of them; returns the exit code."""
    for name in PROGRAMS:
        print(f"{PROGRAMS[name]} in {HOME}", file=sys.stderr)
        install(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

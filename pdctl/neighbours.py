"""Whether workers of this host can write into each other's memory: tried by two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pdctl.finding import Check, Status
from pdctl.render import amount

ROOT = Path("/")
NAME = "cma"
LIMIT_S = 30.0  # two interpreters on a busy host
GONE_S = 10.0  # of what was killed
PROOF = (sys.executable, "-m", "daemons.transfer.proof")
BYTES = 4 << 20  # as daemons/transfer/proof.py writes; that one needs numpy

Told = dict[str, dict[str, Any]]  # by transport: "ms", or "why" not


def check_cma(root: Path = ROOT, command: tuple[str, ...] = PROOF) -> Check:
    """Can processes of this user write to each other, by mapped memory and by the kernel?"""
    try:
        told = proof(command)
    except ValueError as error:
        return Check(NAME, Status.WARN, f"not found out: {error}", " ".join(command))
    return judged(told, forbidden(root))


def proof(command: tuple[str, ...] = PROOF, limit_s: float = LIMIT_S) -> Told:
    """Have it tried; nothing runs any more when this returns.

    Raises:
        ValueError: no answer, with what was said instead.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, said = process.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GONE_S)  # whoever is left has our pipes
            if isinstance(error, subprocess.TimeoutExpired):
                raise ValueError(f"no answer in {limit_s:g} s") from error
            raise
    try:
        told: Told = json.loads(out)
    except ValueError as error:
        last = said.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise ValueError(last[0]) from error
    return told


def forbidden(root: Path = ROOT) -> str:
    """Return what may keep processes of a user from each other; "" for nothing that is known."""
    scope = _read(root / "proc/sys/kernel/yama/ptrace_scope")
    if scope not in ("", "0"):
        return f"kernel.yama.ptrace_scope {scope}"
    status = dict(
        line.partition(":")[::2] for line in _read(root / "proc/self/status").splitlines()
    )
    return "a seccomp filter" if status.get("Seccomp", "").strip() == "2" else ""


def judged(told: Told, barrier: str) -> Check:
    """Return the finding.

    Args:
        told: what came of either transport.
        barrier: what is known to keep processes from each other.
    """
    ways = [f"{way} {one['ms']:.1f} ms" for way, one in told.items() if "ms" in one]
    works = f"{', '.join(ways)} for {amount(BYTES)}" if ways else ""
    refused = [f"{way}: {one['why']}" for way, one in told.items() if "why" in one]
    if not refused:
        return Check(NAME, Status.OK, works + _as_whom())
    blame = f" ({barrier})" if barrier else ""
    if not works:
        value = f"no way into a neighbour's memory: {refused[0]}{blame}"
        return Check(NAME, Status.WARN, value, _hint(refused[0], barrier))
    value = f"{works}; not {refused[0]}{blame}"
    if "ms" in told.get("shm", {}):  # and pools are in files
        return Check(NAME, Status.OK, value + _as_whom())
    return Check(NAME, Status.WARN, value, _hint(refused[0], barrier))


def _hint(why: str, barrier: str) -> str:
    """Return what to do where bytes would leave the host, or go slowly."""
    if "that another process could map" in why:
        return "the kernel has no memfd, or a sandbox forbids it: see SystemCallFilter= of the unit"
    if "Permission denied" in why:
        return "workers must be of one user and see each other in /proc (ProtectProc=, hidepid)"
    if "ptrace_scope" in barrier:
        return "sysctl kernel.yama.ptrace_scope=0; else workers of this host go over the network"
    if barrier:
        return "allow process_vm_writev: SystemCallFilter= of the unit, the container's profile"
    return "workers of this host go over the network to each other, which is slower"


def _as_whom() -> str:
    """Return a caution where more is allowed to us than to daemons."""
    return ", as root" if os.geteuid() == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""What is said of writing between workers of one host, and that finding out leaves nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pdctl.finding import Status
from pdctl.neighbours import Told, check_cma, forbidden, judged, proof

REFUSED = "process 7 cannot be reached: Operation not permitted"
NO_FILE = "no memory here that another process could map"
SHM, CMA = {"ms": 0.4}, {"ms": 1.25}


@pytest.fixture(autouse=True)
def _as_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.parametrize(
    ("told", "barrier", "status", "value", "hint"),
    [
        ({"shm": SHM, "cma": CMA}, "", "ok", "shm 0.4 ms, cma 1.2 ms for 4.0 MiB", ""),
        (
            {"shm": SHM, "cma": {"why": REFUSED}},
            "kernel.yama.ptrace_scope 1",
            "ok",
            f"shm 0.4 ms for 4.0 MiB; not cma: {REFUSED} (kernel.yama.ptrace_scope 1)",
            "",
        ),
        (
            {"shm": {"why": "process 7 cannot be reached: Permission denied"}, "cma": CMA},
            "",
            "warn",
            "cma 1.2 ms for 4.0 MiB; not shm: process 7 cannot be reached: Permission denied",
            "hidepid",
        ),
        (
            {"shm": {"why": NO_FILE}, "cma": {"why": NO_FILE}},
            "a seccomp filter",
            "warn",
            f"no way into a neighbour's memory: shm: {NO_FILE} (a seccomp filter)",
            "memfd",
        ),
        ({"cma": {"why": REFUSED}}, "kernel.yama.ptrace_scope 2", "warn", "cma: ", "sysctl"),
        ({"cma": {"why": REFUSED}}, "a seccomp filter", "warn", "cma: ", "process_vm_writev"),
        ({"cma": {"why": REFUSED}}, "", "warn", "cma: ", "over the network"),
    ],
)
def test_a_finding_names_what_works_what_does_not_and_what_to_do(
    told: Told, barrier: str, status: str, value: str, hint: str
) -> None:
    found = judged(told, barrier)
    assert found.status == status
    assert value in found.value
    assert hint in found.hint
    assert bool(found.hint) == (found.status is Status.WARN)


def test_what_root_may_is_no_proof_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert judged({"shm": SHM, "cma": CMA}, "").value.endswith(", as root")


@pytest.mark.parametrize(
    ("scope", "seccomp", "barrier"),
    [
        (None, "0", ""),
        ("0", "0", ""),
        ("1", "2", "kernel.yama.ptrace_scope 1"),
        ("0", "2", "a seccomp filter"),
    ],
)
def test_what_may_be_to_blame_is_read_from_the_kernel(
    scope: str | None, seccomp: str, barrier: str, tmp_path: Path
) -> None:
    folder = tmp_path / "proc/sys/kernel/yama"
    folder.mkdir(parents=True)
    if scope is not None:
        (folder / "ptrace_scope").write_text(f"{scope}\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text(
        f"Name:\tpython\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\n"
    )
    assert forbidden(tmp_path) == barrier


def test_a_host_without_proc_blames_nobody(tmp_path: Path) -> None:
    assert forbidden(tmp_path) == ""


def test_it_is_tried_for_real() -> None:
    told = proof()
    assert set(told) == {"shm", "cma"}
    assert told["shm"]["ms"] > 0


SECONDS = f"600.{os.getpid()}"  # nobody else sleeps so long
SLEEPS = f"import subprocess; subprocess.run(['sleep', '{SECONDS}'])"


def test_what_does_not_answer_is_ended_with_its_children() -> None:
    with pytest.raises(ValueError, match=r"no answer in 0\.5 s"):
        proof((sys.executable, "-c", SLEEPS), limit_s=0.5)
    assert not any(SECONDS in command_of(pid) for pid in os.listdir("/proc") if pid.isdigit())


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('no numpy here')", "no numpy here"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('hello')", "exit code 0"),
    ],
)
def test_what_cannot_be_tried_is_a_warning_with_what_was_said(script: str, words: str) -> None:
    found = check_cma(command=(sys.executable, "-c", script))
    assert found.status is Status.WARN
    assert words in found.value
    assert sys.executable in found.hint

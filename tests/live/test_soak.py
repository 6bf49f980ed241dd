"""The short form of ``scripts/soak``."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
SECONDS = 16  # with this seed a kill and a freeze


def test_a_cluster_under_load_and_faults_says_nothing_wrong_and_does_not_grow() -> None:
    argv = [sys.executable, "-m", "tests.soak", "--minutes", str(SECONDS / 60), "--seed", "7"]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS + 240)
    print(ran.stdout)
    assert "kills of" in ran.stdout
    assert "freezes of" in ran.stdout
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("soak: passed")

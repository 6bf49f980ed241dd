"""``python -m tests.mutants``: breaks each fence on purpose, in a copy, and wants a test to fail.

A mutant is one replacement in one file, with the test that must notice it. One that no longer
applies, or that its test does not notice, is an error.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.table import MUTANTS, SIM, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("daemons", "pdctl", "tests", "configs", "systemd", "pyproject.toml")
LIMIT_S = 300


def main() -> int:
    """Try every mutant; returns 0 when each one was noticed."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", metavar="WORD", default="", help="those whose name has this word")
    flags = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if flags.only in mutant.name]
    survived = []
    with tempfile.TemporaryDirectory(prefix="pd-mutants-") as folder:
        sound = copy_of_tree(Path(folder) / "sound")
        for test in sorted({mutant.test for mutant in chosen}):
            if run(test, sound) != 0:
                print(f"{test} fails without any mutant: mend that first", file=sys.stderr)
                return 1
    with tempfile.TemporaryDirectory(prefix="pd-mutants-") as folder:
        for number, mutant in enumerate(chosen, 1):
            verdict = try_one(mutant, Path(folder) / f"{number}")
            print(
                f"{number:2}/{len(chosen)} {verdict:9} {mutant.name}  ({mutant.test})", flush=True
            )
            if verdict != "noticed":
                survived.append(mutant.name)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants were noticed")
    return 1 if survived or not chosen else 0


def try_one(mutant: Mutant, folder: Path) -> str:
    """Return ``noticed``, ``survived`` or ``stale``."""
    file = copy_of_tree(folder) / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        return "stale"
    file.write_text(text.replace(mutant.old, mutant.new))
    return "noticed" if run(mutant.test, folder) == 1 else "survived"


def copy_of_tree(folder: Path) -> Path:
    """Copy what tests need, and return where it is."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def run(test: str, folder: Path) -> int:
    """Run one test in a copy, and return its exit code."""
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    if test.startswith(SIM):
        words = ["-m", "tests.sim", "--seeds", test.removeprefix(SIM)]
    argv = [sys.executable, *words]
    return subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
    ).returncode


if __name__ == "__main__":
    sys.exit(main())

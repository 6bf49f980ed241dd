"""A systemctl of a test's own: it notes how it was called and says what it was told to."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """#!{python} -S
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
sys.stdout.write((here / "says").read_text())
sys.stderr.write((here / "cries").read_text())
sys.exit(bool((here / "cries").read_text()))
"""


@dataclass(frozen=True, slots=True)
class FakeSystemctl:
    """``folder`` is put before PATH by whoever makes one."""

    folder: Path

    @staticmethod
    def made(folder: Path) -> FakeSystemctl:
        """Write the script; units are found to be inactive, and nothing fails."""
        folder.mkdir()
        for name in ("systemctl", "journalctl"):
            (folder / name).write_text(SCRIPT.format(python=sys.executable))
            (folder / name).chmod(0o755)
        fake = FakeSystemctl(folder)
        fake.says("ActiveState=inactive\nResult=success\nExecMainStatus=0\nNRestarts=0")
        fake.cries("")
        return fake

    def says(self, words: str) -> None:
        """Let every call print this."""
        (self.folder / "says").write_text(f"{words}\n")

    def cries(self, words: str) -> None:
        """Let every call fail with these words; "" lets it succeed."""
        (self.folder / "cries").write_text(words)

    def calls(self) -> list[list[str]]:
        """Return the arguments of every call."""
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

"""An ssh of a test's own: runs what it is asked to right here, unless the host is called dead."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """#!{python} -S
import os, subprocess, sys
words = sys.argv[1:]
at = words.index("--")
host, command = words[at - 1], words[at + 1]
with open(os.path.join(os.path.dirname(__file__), "asked"), "a") as log:
    log.write(host + " " + command + "\\n")
if host == "203.0.113.9":
    sys.stderr.write("ssh: connect to host 203.0.113.9 port 22: No route to host\\n")
    sys.exit(255)
sys.exit(subprocess.run(["sh", "-c", command]).returncode)
"""


def make_ssh(folder: Path) -> Path:
    """Write the script into a folder, which its maker puts before PATH; returns its log."""
    folder.mkdir(exist_ok=True)
    (folder / "ssh").write_text(SCRIPT.format(python=sys.executable))
    (folder / "ssh").chmod(0o755)
    return folder / "asked"

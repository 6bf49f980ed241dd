from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_host_without_a_compiler_hears_what_it_costs(tmp_path: Path) -> None:
    alone = os.environ | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "daemons.transfer.native"]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hint: without it numpy copies" in done.stderr

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from daemons.runtime.garbage import YOUNG, collect_rarely
kept = [[] for _ in range(1000)]
collect_rarely()
assert gc.get_freeze_count() > 1000
assert gc.isenabled() and gc.get_threshold()[0] == YOUNG
"""


def test_what_is_there_is_frozen_and_collection_goes_on() -> None:
    assert subprocess.run([sys.executable, "-c", CODE]).returncode == 0

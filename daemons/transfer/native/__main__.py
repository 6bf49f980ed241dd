"""``python -m daemons.transfer.native``: build the copier for this machine, once."""

from __future__ import annotations

import sys

from daemons.cluster.compiled import build_once
from daemons.transfer.native.build import COPIER

if __name__ == "__main__":
    sys.exit(build_once(COPIER))

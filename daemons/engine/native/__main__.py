"""``python -m daemons.engine.native``: build the kernels for this machine, once."""

from __future__ import annotations

import sys

from daemons.cluster.compiled import build_once
from daemons.engine.native.build import KERNELS

if __name__ == "__main__":
    sys.exit(build_once(KERNELS))

"""``python -m daemons.engine.native``: build the kernels for this machine, once."""

from __future__ import annotations

import sys

from daemons.cluster.errors import OperatorError
from daemons.engine.native.build import build, library_path


def main() -> int:
    """Build unless it is done; 1 when it cannot be, which costs speed and nothing else."""
    if library_path().is_file():
        return 0
    try:
        print(f"built {build()}")
    except OperatorError as error:
        print(f"{error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

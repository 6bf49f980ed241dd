"""``python -m tests.bench NAME …``: runs ``tests/bench/NAME.py``; without a name, lists them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run one benchmark; returns the exit code."""
    names = sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if "def main(" in path.read_text()
    )
    names.remove("__main__")
    if not argv or argv[0] not in names:
        print(f"usage: scripts/bench NAME …, one of: {', '.join(names)}", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"tests.bench.{argv[0]}").main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

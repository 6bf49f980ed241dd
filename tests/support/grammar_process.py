"""Speaks as ``daemons.engine.grammar_check`` does, without a library."""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Say yes to every grammar but three."""
    print('{"why":""}', flush=True)
    for line in sys.stdin:
        text = json.loads(line)["text"]
        if text == "sleep":
            time.sleep(600)
        if text == "die":
            os.abort()
        print(json.dumps({"why": "regex: no" if text == "no" else ""}), flush=True)


if __name__ == "__main__":
    main()

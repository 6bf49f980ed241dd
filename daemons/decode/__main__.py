"""``pd-decode --config FILE --instance NAME``: the front, which starts its rank the same way."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from daemons.cluster.load import read_settings
from daemons.decode.config import DecodeConfig
from daemons.protocol.topology import Role
from daemons.runtime import worker


def serve(flags: worker.Flags) -> int:
    """Run what the flags ask for: a rank where a front gave its link, else the front."""
    if flags.link is not None:
        from daemons.decode.service import run_rank

        return run_rank(flags)
    from daemons.front.program import Face, run_front

    config = read_settings(flags.file.cluster, flags.instance, DecodeConfig)
    face = Face(
        config.host,
        config.bind,
        config.port,
        config.advertise,
        config.timers,
        local_prefill=config.local_prefill,
    )
    return run_front(flags, Role.DECODE, face)


def main(argv: Sequence[str] | None = None) -> int:
    """Run pd-decode; returns the exit code."""
    return worker.run("pd-decode", "Decodes from KV pages that prefill has written.", serve, argv)


if __name__ == "__main__":
    sys.exit(main())

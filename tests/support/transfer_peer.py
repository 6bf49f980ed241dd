"""A process that others write into: registers memory, says where, then obeys lines on stdin.

Usage: transfer_peer.py HOST BYTES BACKEND. Each line gets one line of JSON in answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import numpy as np

from daemons.transfer.backend import Copy, PeerGone, Region, TransferBackend, WriteCut
from tests.support.backends import backend_of, memory_of


def main() -> None:
    host, length, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    backend = backend_of(name, 2, host)
    memory = memory_of(name, length)
    backend.register([Region(memory.ctypes.data, length)])
    say({"session": backend.session, "address": memory.ctypes.data, "pid": os.getpid()})
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "sha256":
            start, end = int(words[0]), int(words[1])
            say(hashlib.sha256(memory[start:end]).hexdigest())
        elif verb == "count":
            say(int(np.count_nonzero(memory == int(words[0]))))
        elif verb == "fill":
            memory[:] = int(words[0])
            say("filled")
        elif verb == "write":
            session, target, count = words[0], int(words[1]), int(words[2])
            say(written(backend, session, Copy(memory.ctypes.data, target, count)))
        elif verb == "close":
            backend.close()
            say("closed")
        elif verb == "fork":
            say(forked_exit())


def written(backend: TransferBackend, session: str, copy: Copy) -> str:
    try:
        backend.write(session, [copy])
    except (PeerGone, WriteCut) as error:
        return type(error).__name__
    return "written"


def forked_exit() -> int:
    """Return how a forked child ends that leaves by sys.exit with the engine in its memory."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

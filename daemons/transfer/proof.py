"""May another process of this user write into our memory? Proven by doing it.

``python -m daemons.transfer.proof`` shows memory of both kinds, has a process of its own write
there with the real backend, compares what came, and prints one line of JSON. The writer is a child:
a parent may do to its children what workers may not do to each other (kernel.yama.ptrace_scope 1).
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from daemons.cluster.errors import OperatorError
from daemons.kv.shareable import shareable
from daemons.transfer.backend import Copy, PeerGone, Region, WriteCut
from daemons.transfer.cma import MAPPED, NAME, Cma

BYTES = 4 << 20
LIMIT_S = 10.0  # of the writer

MEMORY: dict[str, Callable[[int], mmap.mmap]] = {
    MAPPED: shareable,
    NAME: lambda length: mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
}
Told = dict[str, dict[str, Any]]  # by transport: "ms", or "why" not


class Shown(NamedTuple):
    """Memory of ours that is there to be written."""

    backend: Cma
    memory: Any  # bytes, as an array
    place: tuple[str, int]  # session and address


def proven() -> Told:
    """Return for each transport how long ``BYTES`` took, or why they did not come."""
    told: Told = {}
    shown: dict[str, Shown] = {}
    for name in MEMORY:
        try:
            shown[name] = _shown(name)
        except (OSError, OperatorError) as error:
            told[name] = {"why": error.what if isinstance(error, OperatorError) else str(error)}
    told |= _asked({name: one.place for name, one in shown.items()}) if shown else {}
    for name, one in shown.items():
        if "ms" in told[name] and told[name].pop("crc") != zlib.crc32(one.memory.data):
            told[name] = {"why": "what was written is not what came"}
        one.backend.close()
    return told


def _shown(name: str) -> Shown:
    backend = Cma()
    try:
        memory = np.frombuffer(MEMORY[name](BYTES), dtype=np.uint8)
        backend.register([Region(memory.ctypes.data, BYTES)])
    except (OSError, OperatorError):
        backend.close()
        raise
    return Shown(backend, memory, (backend.session, memory.ctypes.data))


def _asked(places: dict[str, tuple[str, int]]) -> Told:
    """Have the writer write."""
    command = [sys.executable, "-m", "daemons.transfer.proof", json.dumps(places)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {name: {"why": f"the writer is not done in {LIMIT_S:.0f} s"} for name in places}
    if done.returncode == 0:
        told: Told = json.loads(done.stdout)
        return told
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if done.returncode < 0:  # seccomp may kill
        said.append(signal.Signals(-done.returncode).name)
    return {name: {"why": f"the writer died: {said[-1]}"} for name in places}


def written(places: dict[str, tuple[str, int]]) -> Told:
    """Write to another process's memory, twice each, and tell of the second time."""
    source = np.frombuffer(shareable(BYTES), dtype=np.uint8)
    source[:] = np.frombuffer(os.urandom(BYTES), dtype=np.uint8)
    backend = Cma()
    backend.register([Region(source.ctypes.data, BYTES)])
    told: Told = {}
    for name, (session, address) in places.items():
        try:
            if why := backend.trouble(session):
                told[name] = {"why": why}
                continue
            for _ in range(2):
                begun_s = time.perf_counter()
                backend.write(session, [Copy(source.ctypes.data, address, BYTES)])
                took_s = time.perf_counter() - begun_s
        except (PeerGone, WriteCut) as error:
            told[name] = {"why": str(error)}
            continue
        told[name] = {"ms": round(took_s * 1000, 3), "crc": zlib.crc32(source.data)}
        if (carried := backend.transport_to(session)) != name:
            told[name] = {"why": f"it went by {carried}"}
    backend.close()
    return told


if __name__ == "__main__":
    print(json.dumps(written(json.loads(sys.argv[1])) if len(sys.argv) > 1 else proven()))

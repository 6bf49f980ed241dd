"""What a machine can do at most: read so many bytes a second, and multiply.

- Each limit is the best of several ways, and a way counts by its median, so that a share of it
  means something: one way of reading or one size of a product may be far from what is possible.
- The buffer that is read is as large as what a step reads, again and again: what caches give to the
  one they give to the other. It lies in large pages, as packed weights do.
"""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from daemons.engine.native.abi import Team

STREAMS = (1, 2, 4)  # at once, of a thread that reads
SIDES = {"cpu": (1536, 3072), "cuda": (4096, 8192)}  # of matrices that are multiplied
_HUGE = 2 << 20  # a large page
_LEAST_BYTES = 1 << 20  # less says more of the clock than of the memory


def median_s(work: Callable[[], object], samples: int) -> float:
    """Return the median duration of some work, after one that warms up."""
    work()
    found = []
    for _ in range(samples):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def limits(
    device: torch.device, dtype: torch.dtype, read_bytes: int, team: Team | None, samples: int
) -> dict[str, float]:
    """Return the rates of this machine.

    Args:
        device: whose.
        dtype: of the matrices that are multiplied.
        read_bytes: how much a step reads.
        team: threads of the kernels, which read too; None where there are none.
        samples: each way is measured so often.
    """
    return {
        "read_bytes_per_s": read_rate(device, max(read_bytes, _LEAST_BYTES), team, samples),
        "flops_per_s": max(
            product_rate(device, dtype, side, samples) for side in SIDES[device.type]
        ),
    }


def read_rate(device: torch.device, size_bytes: int, team: Team | None, samples: int) -> float:
    """Return the bytes a second of the fastest way to read a buffer from end to end."""
    words = size_bytes // 4
    memory = torch.ones(words, device=device) if device.type == "cuda" else _in_large_pages(words)
    integers = memory.view(torch.int32)
    ways: list[Callable[[], object]] = [
        lambda: _done(memory.sum()),
        lambda: _done(memory.amax()),
        lambda: _done(integers.amax()),
    ]
    if team is not None:
        read, address = team.library.calls.pd_read, memory.data_ptr()
        ways += [partial(read, team.address, address, words * 4, streams) for streams in STREAMS]
    return words * 4 / min(median_s(way, samples) for way in ways)


def product_rate(device: torch.device, dtype: torch.dtype, side: int, samples: int) -> float:
    """Return the operations a second of a product of two square matrices."""
    square = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / median_s(lambda: _done((square @ square)[0, 0]), samples)


def _in_large_pages(words: int) -> torch.Tensor:
    """Return memory that is there, fp32 ``[words]``; small pages where the system has no others."""
    own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # what is shared gets no large pages
    memory = mmap.mmap(-1, words * 4 + _HUGE, flags=own)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)  # keeps the mapping
    first = -whole.data_ptr() % _HUGE // 4
    return whole[first : first + words].fill_(1.0)


def _done(result: torch.Tensor) -> float:
    """Wait for it, wherever it is computed."""
    return float(result)

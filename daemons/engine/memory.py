"""How much memory is free for a KV pool, and how large the pool is.

On a CPU free is what the kernel could give without swapping (``MemAvailable``), and no more than
each control group above this process has left; page cache counts as left. On CUDA it is what the
driver says. It is asked once the weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.protocol.handshake import PAGES_LIMIT

KIB, GIB = 1 << 10, 1 << 30
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def free_bytes(place: Place) -> int:
    """Return how much memory a place has left, in bytes.

    Raises:
        OperatorError: the kernel does not say.
    """
    if not place.is_cpu:
        return int(torch.cuda.mem_get_info(place.device)[0])
    return min([_available(PROC), *_left(PROC, CGROUPS)])


@dataclass(frozen=True, slots=True)
class PageCosts:
    """What pages of both pools cost.

    Attributes:
        full_bytes: of one page in all layers that see everything; 0: there is none.
        window_bytes: of one page in all layers with a window pool; 0: there is none.
        window_pages: the most window pages that are of use, for all rooms together.
        pages: the most pages that are of use where only the window pool costs anything.
    """

    full_bytes: int
    window_bytes: int = 0
    window_pages: int = 0
    pages: int = PAGES_LIMIT

    def window_pages_of(self, pages: int) -> int:
        """Return the size of the window pool beside so many pages: no text has more than these."""
        return min(pages, self.window_pages)

    def bytes_of(self, pages: int) -> int:
        """Return what so many pages cost with their window pool."""
        return pages * self.full_bytes + self.window_pages_of(pages) * self.window_bytes

    def within(self, budget: int) -> int:
        """Return the most pages that so many bytes buy."""
        pages = budget // (self.full_bytes + self.window_bytes)
        if pages >= self.window_pages:  # what is beyond costs nothing in layers with a window
            left = budget - self.window_pages * self.window_bytes
            pages = left // self.full_bytes if self.full_bytes else self.pages
        return min(pages, PAGES_LIMIT)


def pool_pages(config: EngineConfig, costs: PageCosts, *, free: int, kv_tokens: int) -> int:
    """Return how many pages the full pool has.

    Args:
        config: its page size, and the share of what is free.
        costs: of a page.
        free: bytes that are free.
        kv_tokens: how large the pool is to be, in tokens; 0: as the share says.

    Raises:
        OperatorError: no page fits, or more are asked for than there is memory for.
    """
    if kv_tokens == 0:
        pages = costs.within(int(free * config.kv_fraction))
        if pages > 0:
            return pages
        raise OperatorError(
            f"no KV page of {_size(costs.bytes_of(1))} fits into {config.kv_fraction:g} of"
            f" {_size(free)} of free memory",
            "free some memory, or set engine.kv_fraction higher or engine.page_size lower",
        )
    pages = kv_tokens // config.page_size
    if not 0 < pages <= PAGES_LIMIT:
        raise OperatorError(
            f"a KV pool of {kv_tokens} tokens has {pages} pages of {config.page_size}",
            f"engine.kv_tokens / engine.page_size must be 1 to {PAGES_LIMIT}",
        )
    needed = costs.bytes_of(pages)
    if needed > free:
        most = costs.within(free) * config.page_size
        raise OperatorError(
            f"a KV pool of {kv_tokens} tokens takes {_size(needed)}, {_size(free)} are"
            f" free: {_size(needed - free)} too much",
            f"set engine.kv_tokens to at most {most}, or to 0 for"
            f" {config.kv_fraction:g} (engine.kv_fraction) of what is free",
        )
    return pages


def no_memory(what: str, needed: int, place: Place) -> OperatorError:
    """Return the error for memory that was not given although it was counted as free."""
    free = free_bytes(place)
    return OperatorError(
        f"{what} takes {_size(needed)}, {_size(free)} are free: {_size(needed - free)} too much",
        "stop what else uses this device or host, or set engine.kv_tokens lower",
    )


def _available(proc: Path) -> int:
    hint = "workers want the whole of /proc, as a Linux of 3.14 or later has it (ProcSubset=all)"
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError as error:
        raise OperatorError(f"{error.filename} cannot be read: {error.strerror}", hint) from error
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * KIB
    raise OperatorError(f"{proc / 'meminfo'} has no MemAvailable", hint)


def _left(proc: Path, cgroups: Path) -> list[int]:
    """Return what each control group that limits memory has left, by both versions' files."""
    found: list[int] = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # a kernel without control groups
        return found
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, names = cgroups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            root = cgroups / "memory"
        else:
            continue
        own = root / path.lstrip("/")
        for group in (own, *own.parents):
            found += _left_of(group, *names)
            if group == root:
                break
    return found


def _left_of(group: Path, limit_name: str, used_name: str) -> list[int]:
    try:
        limit = (group / limit_name).read_text().strip()
        used = int((group / used_name).read_text())
        stat = (group / "memory.stat").read_text()
    except OSError:  # not limited, or not this process's to see
        return []
    if limit == "max":
        return []
    cache = dict(line.split() for line in stat.splitlines())
    given_up = int(cache.get("inactive_file", 0))
    return [max(0, int(limit) - used + given_up)]


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB // 10 else f"{count / (1 << 20):.1f} MiB"

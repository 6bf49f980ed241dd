"""How a pool could be laid out, and what checksums cost: the two smaller tables of ``transfer``."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import xxhash

from daemons.transfer.backend import Comb
from daemons.transfer.combs import copy
from tests.bench.transfer_ways import Backend, Case, Memory, Shape, measure

PAGES, RUNS = 32, (1, 4, 32)  # a chunk of 512 tokens, in runs of so many neighbours
CONTEXT_PAGES = 128  # that attention reads of one head
Model = tuple[int, int, int]  # layers, kv heads, bytes of a head's page of one kind


@dataclass(frozen=True, slots=True)
class Layout:
    """What lies together in memory, from the outermost on.

    ``planes`` and ``in_page`` say which of layers, kinds and heads are outside and inside a page.
    """

    name: str
    planes: str  # of "l", "k", "h"
    note: str

    def shape(self, name: str, model: Model) -> Shape:
        """Return a model's KV in this layout."""
        layers, heads, page_bytes = model
        sizes = {"l": layers, "k": 2, "h": heads}
        planes = int(np.prod([sizes[one] for one in self.planes] or [1]))
        whole = int(np.prod(list(sizes.values())))
        of_layers = layers if "l" in self.planes else 1
        return Shape(name, planes, page_bytes * whole // planes, of_layers)


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            "layer-kind-head-page",
            "lkh",
            "ours: a head's pages are neighbours, a run is one stream; a slice of heads is regions",
        ),
        Layout(
            "layer-kind-page-head",
            "lk",
            "what paged kernels on CUDA take; a slice of heads is a gap in each page, not regions",
        ),
        Layout("layer-page-kind-head", "l", "the same, keys and values of a page together"),
        Layout(
            "page-layer-kind-head",
            "",
            "one copy for a run; attention strides a whole page of all layers, no sending by layer",
        ),
    )
}


def layouts(
    models: dict[str, Model], memory: Memory, ours: dict[str, Backend], seconds: float
) -> list[dict[str, object]]:
    """Print GB/s of a chunk in each layout, how many copies it is, and how attention would read."""
    rows: list[dict[str, object]] = []
    print(f"a chunk of {PAGES} pages; GB/s of each backend by pages that are neighbours")
    columns = [f"{name} {run}" for name in ours for run in RUNS]
    head = f"{'model':>13}  {'layout':<22}{'copies':>14}{'read':>7}"
    print(head + "".join(f"{name:>13}" for name in columns))
    for name, model in models.items():
        for layout in LAYOUTS.values():
            shape = layout.shape(name, model)
            found: dict[str, float] = {}
            counts = [shape.planes * (PAGES // run) for run in RUNS]
            for run in RUNS:
                pool_pages = memory.region.bytes // shape.whole_page_bytes
                case = Case(shape, PAGES, 1, pool_pages, run)
                rates = measure(case, {n: backend.send for n, backend in ours.items()}, seconds)
                found |= {f"{n} {run}": statistics.median(rates[n]) for n in ours}
            read = reading(memory, shape, model[2], seconds)
            words = f"{name:>13}  {layout.name:<22}{'/'.join(map(str, counts)):>14}{read:>7.2f}"
            print(words + "".join(f"{found[one]:>13.3f}" for one in columns), flush=True)
            rows.append(
                {"model": name, "layout": layout.name, "copies": counts, "gb_per_s": found}
                | {"read_gb_per_s": read}
            )
    print(f"copies: of the chunk, in runs of {', '.join(map(str, RUNS))} pages")
    print(f"read: GB/s of one head's keys over {CONTEXT_PAGES} pages in a row, as attention goes")
    for layout in LAYOUTS.values():
        print(f"{layout.name:>22}: {layout.note}")
    return rows


def reading(memory: Memory, shape: Shape, head_bytes: int, seconds: float) -> float:
    """Return the rate of reading one head of one kind of one layer, page after page."""
    into = np.zeros(CONTEXT_PAGES * head_bytes, dtype=np.uint8)
    base, size = memory.source.ctypes.data, CONTEXT_PAGES * shape.page_bytes
    rates: list[float] = []
    begun, at = time.perf_counter(), 0
    while len(rates) < 5 or time.perf_counter() - begun < seconds:
        comb = Comb(
            base + at, into.ctypes.data, head_bytes, CONTEXT_PAGES, shape.page_bytes, head_bytes
        )
        start = time.perf_counter()
        copy(comb)
        rates.append(comb.bytes / (time.perf_counter() - start) / 1e9)
        at = (at + size + 64 * head_bytes) % (memory.region.bytes - size)
    return statistics.median(rates)


def sums(
    models: dict[str, Model], memory: Memory, ours: dict[str, Backend], seconds: float
) -> list[dict[str, object]]:
    """Print how much longer a chunk takes with sums, of all or of one in sixteen."""
    rows: list[dict[str, object]] = []
    print(f"{'model':>13}{'pages':>6}{'sum GB/s':>10}" + "".join(f"{n:>24}" for n in ours))
    for name, model in models.items():
        shape = LAYOUTS["layer-kind-head-page"].shape(name, model)
        for pages in (1, 4, 16, 64):
            case = Case(shape, pages, 1, memory.region.bytes // shape.whole_page_bytes)

            def summed(case: Case, shift: int) -> float:
                paired = memory.pairing(case, memory.target.ctypes.data)
                (chunk,) = case.chunks(shift)
                view, base = memoryview(memory.source), memory.region.address  # type: ignore[arg-type]
                begun = time.perf_counter()
                total = xxhash.xxh3_64()
                for source, _, length in paired.copies(paired.runs(chunk, chunk)):
                    total.update(view[source - base : source - base + length])
                return case.bytes / (time.perf_counter() - begun) / 1e9

            ways = {"sum": summed} | {n: backend.send for n, backend in ours.items()}
            rates = {n: statistics.median(f) for n, f in measure(case, ways, seconds).items()}
            longer = {n: rates[n] / rates["sum"] for n in ours}
            cells = "".join(
                f"{f'+{100 * more / 16:.1f} % / +{100 * more:.0f} %':>24}"
                for more in longer.values()
            )
            print(f"{name:>13}{pages:>6}{rates['sum']:>10.2f}{cells}", flush=True)
            rows.append({"model": name, "pages": pages, "gb_per_s": rates, "longer": longer})
    print("longer than without, on each side: one chunk in 16 summed (default) / every chunk")
    return rows

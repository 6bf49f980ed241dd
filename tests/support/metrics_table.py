"""Makes docs/METRICS.md: ``python -m tests.support.metrics_table > docs/METRICS.md``.

Metrics are asked of the daemons' own registries. What a rank counts has names in its code only, so
those are found there, and what each means is said here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from daemons.bootstrap.service import Metrics as BookMetrics
from daemons.front.metrics import Meter
from daemons.lb.metrics import Metrics as LbMetrics
from daemons.protocol.story import StageTimes, Wire, WorkerStatus

ROOT = Path(__file__).parents[2]
COUNTED_IN = ("daemons/prefill", "daemons/decode")
COUNT = re.compile(r'\.count\(\s*f?"(\w+)')
RANK = "pd_rank_"
COUNTERS = {  # of ranks
    "cache_evictions": "cached pages that went for want of room",
    "cache_lookups": "prompts that were looked for among cached pages",
    "cached_tokens": "prompt tokens that were found there",
    "checksum_mismatches": "decode: rooms that failed since what landed is not what was summed",
    "checksums_missing": "decode: rooms that failed since pages came without a sum (`all`)",
    "chunks_verified": "decode: sums that were compared",
    "destinations_repeated": "decode: destinations that were told again",
    "duplicate_rooms": "requests for a room that was here already",
    "early_bytes": "prefill: of `sent_bytes`, what had landed before its prompt's forward ended",
    "failed": "rooms that failed; `what` is the cause",
    "messages_dropped": "messages that were not taken; `what` is why",
    "messages_from_strangers": "messages of peers, or about rooms, that are not known",
    "output_tokens": "decode: tokens that were told",
    "prompt_tokens": "prompt tokens that were computed",
    "quarantines_ended": "decode: memory that became free since nobody writes it any more",
    "registrations_ignored": "prefill: decodes that were not answered",
    "registrations_refused": "prefill: decodes that do not fit",
    "retractions": "decode: rooms that left the batch for want of pages",
    "rooms_done": "rooms that ended well",
    "rooms_failed": "rooms that failed",
    "rooms_refused": "rooms that were not taken",
    "sent_bytes": "prefill: bytes that landed at decodes, rows included",
    "steps": "decode: forwards",
}
HEAD = """# Metrics

Made from the code by `python -m tests.support.metrics_table`, and held to it by a test. Every
daemon has `GET /metrics`, in Prometheus' format. Times are in seconds, no label is a room. A
counter's name ends in `_total`, a histogram's in `_bucket`, `_sum` and `_count`.

- Hidden behind the forward:
  `rate(pd_rank_early_bytes_total[5m]) / rate(pd_rank_sent_bytes_total[5m])`.
- Speed of a wire: `sum by (peer) (rate(pd_wire_bytes_total[5m]))
  / sum by (peer) (rate(pd_write_seconds_sum{of="wire"}[5m]))`.
- How far pages were merged: `pd_wire_unmerged_total / pd_wire_copies_total`.
"""
TABLE = "| metric | kind | labels | |\n|---|---|---|---|\n"


def render() -> str:
    """Return the document."""
    parts = [HEAD]
    for title, registry in sections():
        parts.append(f"\n## {title}\n\n{TABLE}")
        parts += _rows(registry)
    parts.append("\n## What a rank counts\n\n| metric | |\n|---|---|\n")
    parts += [f"| `{RANK}{name}_total` | {about} |\n" for name, about in sorted(COUNTERS.items())]
    return "".join(parts)


def sections() -> Iterator[tuple[str, CollectorRegistry]]:
    """Yield the registry of each kind of daemon."""
    meter = Meter()
    meter.status = _status()
    yield "pd-prefill and pd-decode", meter.registry
    yield "pd-lb", LbMetrics().registry
    yield "pd-bootstrap", BookMetrics().registry


def counted() -> set[str]:
    """Return the names that ranks count under, as the code has them."""
    files = [file for folder in COUNTED_IN for file in (ROOT / folder).glob("*.py")]
    return {name for file in files for name in COUNT.findall(file.read_text())}


def _rows(registry: CollectorRegistry) -> list[str]:
    found = [one for one in registry.collect() if not one.name.startswith(RANK)]
    return sorted(_row(metric, _labels(registry, metric)) for metric in found)


def _row(metric: Metric, labels: Iterable[str]) -> str:
    ending = "_total" if metric.type == "counter" else ""
    told = ", ".join(f"`{label}`" for label in labels)
    return f"| `{metric.name}{ending}` | {metric.type} | {told} | {metric.documentation} |\n"


def _labels(registry: CollectorRegistry, metric: Metric) -> list[str]:
    """Return what a metric is told by; before its first sample only its collector knows."""
    for collector in registry._collector_to_names:
        if getattr(collector, "_name", "") == metric.name:
            return sorted(getattr(collector, "_labelnames", ()))
    told = {label for sample in metric.samples for label in sample.labels}
    return sorted((told | {*getattr(metric, "_labelnames", ())}) - {"le"})


def _status() -> WorkerStatus:
    """Return a status in which everything is told."""
    one, times = {"free": 1}, StageTimes().with_one(0.1)
    return WorkerStatus(
        instance="p0",
        role="prefill",
        epoch=1,
        state="ready",
        version="",
        up_s=1.0,
        model="",
        transport="tcp",
        rooms=one,
        pages=one,
        pages_total=1,
        rows=one,
        peers={"d0": "alive 1"},
        counters={},
        credits=one,
        stage_times={"forward": times},
        wires={"d0": Wire("tcp", 1, 1, 1, 0, 0.0, times, times)},
        window_pages=one,
    )


if __name__ == "__main__":
    print(render(), end="")

"""docs/METRICS.md says what the daemons tell."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tests.support.metrics_table import COUNTERS, ROOT, counted, render, sections

REGISTRIES = dict(sections())


def test_the_document_of_metrics_is_as_the_code_has_it() -> None:
    written = (ROOT / "docs/METRICS.md").read_text()
    assert written == render(), "python -m tests.support.metrics_table > docs/METRICS.md"


def test_what_ranks_count_is_explained() -> None:
    assert len(counted()) > 15
    assert counted() <= COUNTERS.keys()


@pytest.mark.parametrize("title", REGISTRIES)
def test_no_metric_has_a_label_for_each_room(title: str) -> None:
    registry: CollectorRegistry = REGISTRIES[title]
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert samples
    assert not [sample for sample in samples if {"room", "rid", "attempt"} & sample.labels.keys()]

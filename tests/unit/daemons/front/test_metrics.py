"""What a front measures and passes on."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import generate_latest

from daemons.front.metrics import Meter, families, percentile
from daemons.protocol.story import StageTimes, Wire
from tests.support.fake_rank import worker_status


def test_a_meter_without_ranks_shows_what_it_knows_itself() -> None:
    text = generate_latest(Meter().registry).decode()
    assert "pd_ttft_seconds_count 0.0" in text
    assert "pd_pages" not in text


def test_a_snapshot_of_the_ranks_becomes_metrics() -> None:
    meter = Meter()
    meter.status = worker_status(rooms=3)
    value = meter.registry.get_sample_value
    assert value("pd_rooms", {"stage": "running"}) == 3
    assert value("pd_pages", {"owner": "free"}) == 60
    assert value("pd_pool_pages") == 64
    assert value("pd_peers", {"state": "alive"}) == 1
    assert value("pd_rank_rooms_ended_total", {"what": ""}) == 3


def test_the_longest_lag_of_the_loop_is_no_counter() -> None:
    status = msgspec.structs.replace(worker_status(), loop_lag_max_s=0.25)
    told = {family.name: family for family in families(status)}
    assert told["pd_loop_lag_max_seconds"].type == "gauge"
    assert told["pd_loop_lag_max_seconds"].samples[0].value == 0.25


def test_counters_of_one_name_are_one_metric_and_differ_by_a_label() -> None:
    counters = {"failed:peer.died": 1.0, "failed:queue.full": 2.0, "kv.write-bytes": 3.0}
    status = msgspec.structs.replace(worker_status(), counters=counters)
    samples = {
        (sample.name, sample.labels.get("what")): sample.value
        for family in families(status)
        for sample in family.samples
        if family.name.startswith("pd_rank")
    }
    assert samples == {
        ("pd_rank_failed_total", "peer.died"): 1.0,
        ("pd_rank_failed_total", "queue.full"): 2.0,
        ("pd_rank_kv_write_bytes_total", ""): 3.0,
    }


def test_what_was_written_to_each_decode_is_told_with_what_carried_it_and_not_why() -> None:
    wires = {
        "d0": Wire("shm", 4096, 2, 8, 0, 0.25, StageTimes().with_one(0.001)),
        "d1": Wire("tcp (not cma: it runs on another host)", 512, 1, 1, 3),
    }
    meter = Meter()
    meter.status = msgspec.structs.replace(
        worker_status(), wires=wires, transport="tcp (not cma: no memory here)"
    )
    value = meter.registry.get_sample_value
    assert value("pd_wire_bytes_total", {"peer": "d0", "transport": "shm"}) == 4096
    assert value("pd_wire_copies_total", {"peer": "d0", "transport": "shm"}) == 2
    assert value("pd_wire_unmerged_total", {"peer": "d0", "transport": "shm"}) == 8
    assert value("pd_wire_failed_total", {"peer": "d1", "transport": "tcp"}) == 3
    assert value("pd_wire_share", {"peer": "d0"}) == 0.25
    assert value("pd_write_seconds_count", {"of": "queue", "peer": "d0"}) == 1
    assert value("pd_write_seconds_count", {"of": "wire", "peer": "d0"}) == 0
    assert 'transport="tcp"' in generate_latest(meter.registry).decode().partition("pd_rooms")[0]


def test_tokens_that_come_together_share_their_time() -> None:
    meter = Meter()
    meter.first_token(0.5)
    meter.next_tokens(0.3, 3)
    value = meter.registry.get_sample_value
    assert value("pd_itl_seconds_count") == 3
    assert value("pd_itl_seconds_sum") == pytest.approx(0.3)
    assert value("pd_output_tokens_total") == 4
    assert meter.ttft_p99_s == 0.5
    assert meter.itl_p99_s == pytest.approx(0.1)


def test_a_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 0.99) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile(range(100), 0.99) == 99
    assert percentile(range(100), 0.5) == 50


def test_times_of_stages_are_a_histogram_without_rooms() -> None:
    times = StageTimes().with_one(0.002).with_one(0.002).with_one(500.0)
    status = msgspec.structs.replace(worker_status(), stage_times={"waiting": times})
    meter = Meter()
    meter.status = status

    def value(name: str, **labels: str) -> float | None:
        labels |= {"role": "decode", "stage": "waiting"}
        return meter.registry.get_sample_value(f"pd_stage_seconds_{name}", labels)

    assert value("bucket", le="0.001") == 0
    assert value("bucket", le="0.003") == 2
    assert value("bucket", le="100.0") == 2
    assert value("bucket", le="+Inf") == value("count") == 3
    assert value("sum") == pytest.approx(500.004)

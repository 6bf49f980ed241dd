from __future__ import annotations

import ctypes as c

import pytest
import torch

from daemons.engine import limits as module
from daemons.engine.limits import limits, median_s, product_rate, read_rate
from tests.support.native import library, team

CPU = torch.device("cpu")


def test_a_median_is_of_as_many_runs_as_are_asked_for_after_one_that_warms_up() -> None:
    runs: list[int] = []
    assert median_s(lambda: runs.append(1), 3) >= 0
    assert len(runs) == 4


def test_rates_are_had_with_and_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDES", {"cpu": (32, 64)})
    for threads in (None, team(2)):
        found = limits(CPU, torch.bfloat16, 3 << 20, threads, 1)
        assert all(rate > 0 for rate in found.values())


def test_the_best_way_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([4.0, 2.0, 8.0])
    monkeypatch.setattr(module, "median_s", lambda work, samples: next(times))
    assert read_rate(CPU, 4096, None, 1) == 4096 / 2.0
    times = iter([4.0, 2.0])
    monkeypatch.setattr(module, "SIDES", {"cpu": (8, 8)})
    rates = [product_rate(CPU, torch.float32, 8, 1) for _ in range(2)]
    assert rates == [2 * 8**3 / 4.0, 2 * 8**3 / 2.0]


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_reading_reads_every_word(members: int, streams: int) -> None:
    words = torch.arange(64 * 16 * 8, dtype=torch.int32)
    address, team_address = words.data_ptr(), team(members).address
    found = library().calls.pd_read(team_address, c.c_void_p(address), words.nbytes, streams)
    assert found == int(words.sum()) % 2**32

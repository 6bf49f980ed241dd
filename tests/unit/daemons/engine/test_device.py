from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.config import EngineConfig
from daemons.engine.device import bind, choose_place, set_threads


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("_no_cuda")
def test_auto_without_cuda_is_cpu_in_fp32() -> None:
    place = choose_place(EngineConfig())
    assert (place.device.type, place.dtype_name, place.is_cpu) == ("cpu", "fp32", True)


@pytest.mark.usefixtures("_cuda")
def test_auto_with_cuda_is_cuda_in_bf16() -> None:
    place = choose_place(EngineConfig())
    assert (place.device.type, place.dtype_name, place.is_cpu) == ("cuda", "bf16", False)


@pytest.mark.usefixtures("_cuda")
def test_cpu_is_obeyed_where_there_is_cuda() -> None:
    place = choose_place(EngineConfig(device="cpu", dtype="bf16"))
    assert (place.device.type, place.dtype) == ("cpu", torch.bfloat16)


@pytest.mark.usefixtures("_no_cuda")
def test_cuda_where_there_is_none_is_the_operators_error() -> None:
    with pytest.raises(OperatorError, match="no CUDA device"):
        choose_place(EngineConfig(device="cuda"))


@pytest.mark.usefixtures("_threads")
def test_threads_are_set_and_zero_leaves_them() -> None:
    set_threads(1)
    assert torch.get_num_threads() == 1
    set_threads(0)
    assert torch.get_num_threads() == 1
    set_threads(2)
    assert torch.get_num_threads() == 2


def test_a_thread_is_kept_on_its_cores_and_none_leave_it_alone() -> None:
    before = os.sched_getaffinity(0)
    try:
        bind(())
        assert os.sched_getaffinity(0) == before
        bind((min(before),))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_a_core_that_is_not_there_is_the_operators_error() -> None:
    with pytest.raises(OperatorError, match="cannot run on 1000"):
        bind((1000,))

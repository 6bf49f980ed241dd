from __future__ import annotations

from pathlib import Path

import pytest
import torch

from daemons.engine.attention import paged_attention
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.engine.engine import Engine
from daemons.engine.kernels import choose_attention, choose_sampler, native_team
from daemons.engine.kv_cache import make_pool, memory_of
from daemons.engine.models.decoder import Decoder
from daemons.engine.native.decoder import NativeDecoder
from daemons.engine.native.sampler import NativeSampler
from daemons.engine.parts import ByParts
from daemons.engine.sampler import TorchSampler
from tests.support.checkpoints import checkpoint
from tests.support.native import library, team

CPU = Place(torch.device("cpu"), torch.float32)


def test_torch_is_obeyed_and_a_device_has_no_use_for_them() -> None:
    assert native_team(EngineConfig(kernels="torch"), CPU, ()) is None
    cuda = Place(torch.device("cuda"), torch.bfloat16)
    assert native_team(EngineConfig(), cuda, ()) is None


def test_auto_takes_what_is_there_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library()
    found = native_team(EngineConfig(threads=2), CPU, ())
    assert found is not None
    assert found.members == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native_team(EngineConfig(), CPU, ()) is None


def test_attention_is_the_kernels_where_there_is_a_team_and_a_pool_that_they_know() -> None:
    memory = memory_of(make_pool(1, 1, 4, 16, 16, CPU))
    odd = memory_of(make_pool(1, 1, 4, 16, 5, CPU))
    assert choose_attention(memory, 2, None) == ByParts(paged_attention)
    assert choose_attention(odd, 2, team(1)) == ByParts(paged_attention)
    assert choose_attention(memory, 2, team(1)) != ByParts(paged_attention)


def test_tokens_are_chosen_in_the_kernels_where_there_is_a_team() -> None:
    assert isinstance(choose_sampler(None, 10), TorchSampler)
    assert isinstance(choose_sampler(team(1), 10), NativeSampler)


def test_an_engine_runs_the_model_in_what_it_was_told() -> None:
    library()
    for way, kind in (("native", NativeDecoder), ("torch", Decoder)):
        engine = Engine.load(EngineConfig(device="cpu", kernels=way), checkpoint("llama"))
        assert isinstance(engine._model, kind)
    engine = Engine.load(EngineConfig(device="cpu", kernels="native"), checkpoint("qwen3-moe"))
    assert isinstance(engine._model, Decoder)

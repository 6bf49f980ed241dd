"""The engine on a device: the same texts however they are run, and near those of a CPU in fp32."""

from __future__ import annotations

import functools

import pytest
import torch

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import checkpoint
from tests.support.engines import Talk, begin, prefill, talk_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PAGES = 4
KINDS = ("llama", "mistral", "qwen2", "qwen3", "qwen3-moe", "gemma2", "gemma3")


@functools.cache
def engine_of(kind: str, copy: int = 0, **settings: object) -> Engine:
    config = EngineConfig(**{"device": "cuda", "kv_tokens": 64 * 256, **settings})  # type: ignore[arg-type]
    engine = Engine.load(config, checkpoint(kind), window_rooms=16)
    engine.warm_up()
    return engine


def talk(room: int, length: int = 70) -> Talk:
    prompt = tuple((7 * n * n + room) % 250 + 10 for n in range(length))
    return Talk(RoomKey(room, 1), prompt, tuple(range(PAGES * room, PAGES * room + PAGES)))


@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_in_fp32_it_says_what_a_cpu_says(kind: str, page_size: int) -> None:
    settings = {"dtype": "fp32", "page_size": page_size}
    cpu = engine_of(kind, **{**settings, "device": "cpu", "kernels": "torch"})
    cuda = engine_of(kind, **settings)
    texts = []
    for engine in (cpu, cuda):
        one = talk(1, 40 if page_size == 16 else 70)
        begin(engine, [one])
        talk_on(engine, [one], 8)
        texts.append(one.tokens)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("settings", [{}, {"weights": "int8"}, {"weights": "int4"}], ids=repr)
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("page_size", [64, 256])
def test_in_bf16_every_way_of_running_answers(
    page_size: int, kv_dtype: str, settings: dict[str, str]
) -> None:
    engine = engine_of("llama", page_size=page_size, kv_dtype=kv_dtype, **settings)
    talks = [talk(room) for room in range(1, 6)]
    begin(engine, talks)
    talk_on(engine, talks, 12)
    assert all(len(one.tokens) == 12 for one in talks)
    wanted = "fp8_e4m3" if kv_dtype == "fp8_e4m3" else "bf16"
    assert engine.fingerprint.dtype == wanted
    assert (engine._graphs is not None) == (page_size == 256 and kv_dtype == "auto")


def test_pages_cross_from_one_pool_to_another_on_the_device() -> None:
    one = engine_of("llama", dtype="fp32", page_size=64)
    other = engine_of("llama", 1, dtype="fp32", page_size=64)
    alone, split = talk(1), talk(2)
    split.prompt = alone.prompt
    begin(one, [alone])
    talk_on(one, [alone], 8)
    prefill(one, split)
    content = one._memory.full.copy_out(split.pages)
    split.pages = tuple(range(40, 40 + PAGES))
    other._memory.full.copy_in(split.pages, content)
    begin(other, [split])
    talk_on(other, [split], 8)
    assert split.tokens == alone.tokens
    assert len(other.kv_regions()) == len(one.kv_regions())

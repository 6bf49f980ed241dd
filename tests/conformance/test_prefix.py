"""A text that begins in pages which another room left says what it would say by itself."""

from __future__ import annotations

import functools
import random

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.engine.step import Sequence
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import VOCABULARY, checkpoint
from tests.support.engines import Talk, begin, step, window_pages

PAGES = 320
TURNS = 4
NEW = 6  # tokens said in a turn
KINDS = ("llama", "qwen3", "gemma3", "mistral")
DRAWN = Sampling(temperature=1.0, seed=7, max_tokens=64, frequency_penalty=0.5)
GREEDY = Sampling(temperature=0.0, max_tokens=64)


@functools.cache
def engine_of(kind: str, page_size: int) -> Engine:
    tokens = PAGES * page_size
    config = EngineConfig(device="cpu", dtype="fp32", page_size=page_size, kv_tokens=tokens)
    return Engine.load(config, checkpoint(kind), window_rooms=16)


def said(engine: Engine, talk: Talk, chunk: int) -> list[int]:
    """Run a room until it has said its tokens."""
    begin(engine, [talk])
    while len(talk.said) < NEW:
        step(engine, [talk], chunk)
    engine.end(talk.key)
    return talk.tokens


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_over_cached_pages_says_what_it_says_without_them(
    kind: str, page_size: int, sampling: Sampling
) -> None:
    engine, draw = engine_of(kind, page_size), random.Random(page_size)
    order = list(range(PAGES))
    draw.shuffle(order)
    pages, scratch = tuple(order[: PAGES // 2]), tuple(order[PAGES // 2 :])
    prompt: tuple[int, ...] = ()
    cached = reused = 0
    window = window_pages(engine, RoomKey(TURNS + 1, 1), 32) if engine.window_pages else None
    for turn in range(1, TURNS + 1):
        prompt += tuple(draw.randrange(VOCABULARY) for _ in range(draw.choice((1, 15, 16, 17, 5))))
        cached = min(cached, (len(prompt) - 1) // page_size * page_size)
        if window is not None:
            cached = window.usable(cached)
        reused += cached
        over = Talk(RoomKey(turn, 1), prompt, pages, sampling, cached=cached, window=window)
        alone = Talk(RoomKey(turn, 1), prompt, scratch, sampling)
        answer = said(engine, over, chunk=8)
        assert answer == said(engine, alone, chunk=32)
        prompt += tuple(answer)
        cached = (len(prompt) - 1) // page_size * page_size  # the newest token is not written
    assert reused > 0 or page_size == 64


@pytest.mark.parametrize("page_size", [1, 16])
def test_log_probabilities_of_a_prompt_are_the_same_when_its_beginning_is_cached(
    page_size: int,
) -> None:
    engine, draw = engine_of("llama", page_size), random.Random(3)
    prompt = tuple(draw.randrange(VOCABULARY) for _ in range(40))
    first = Talk(RoomKey(1, 1), prompt, tuple(range(60)), GREEDY)
    said(engine, first, 40)
    wanted = Sampling(temperature=0.0, prompt_logprobs=2, prompt_logprobs_start=33, max_tokens=9)
    cached = 32 // page_size * page_size
    whole = Talk(RoomKey(2, 1), prompt, tuple(range(60, 120)), wanted)
    over = Talk(RoomKey(3, 1), prompt, tuple(range(60)), wanted, cached=cached)
    for talk in (whole, over):
        engine.begin(Sequence(talk.key, talk.sampling, talk.prompt))
        step(engine, [talk], 40)
        engine.end(talk.key)
    assert [out.id for out in over.prompt_logprobs] == list(prompt[33:])
    for one, other in zip(over.prompt_logprobs, whole.prompt_logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)

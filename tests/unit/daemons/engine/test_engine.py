from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from daemons.cluster.errors import OperatorError
from daemons.engine import reservation
from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine, eos_token_ids
from daemons.engine.step import NEWEST, Item, Sequence
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import EOS, POSITIONS, VOCABULARY, checkpoint, write_checkpoint
from tests.support.engines import GREEDY, Talk, begin, talk_on
from tests.support.native import library

CONFIG = EngineConfig(device="cpu", dtype="fp32", page_size=16, kv_tokens=1024)
KEY, OTHER = RoomKey(1, 1), RoomKey(2, 1)
PROMPT = (5, 6, 7, 8)


@pytest.fixture
def engine() -> Engine:
    return Engine.load(CONFIG, checkpoint("llama"))


def greedy_first(engine: Engine) -> int:
    """Return what a fresh room says first after PROMPT."""
    talk = Talk(RoomKey(99, 1), PROMPT, (63,))
    begin(engine, [talk])
    talk_on(engine, [talk], 1)
    engine.end(talk.key)
    return talk.tokens[0]


def test_a_loaded_engine_tells_its_sizes(engine: Engine) -> None:
    assert (engine.pages, engine.page_size) == (64, 16)
    assert (engine.vocab_size, engine.max_model_len) == (VOCABULARY, POSITIONS)
    assert engine.eos_token_ids == (EOS,)
    assert Engine.load(CONFIG, checkpoint("llama"), kv_tokens=100).pages == 6


def test_the_regions_lie_within_the_pools_memory(engine: Engine) -> None:
    address, size = engine.kv_memory()
    regions = engine.kv_regions()
    assert regions[0].address == address
    assert regions[-1].address + engine.pages * regions[-1].page_bytes == address + size


@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_a_forward_says_of_each_layer_that_it_is_written(
    kernels: Literal["torch", "native"], architecture: str
) -> None:
    if kernels == "native":
        library()
    config = msgspec.structs.replace(CONFIG, kernels=kernels)
    engine = Engine.load(config, checkpoint(architecture))
    engine.begin(Sequence(KEY, GREEDY, PROMPT))
    engine.progress.begin(1)
    engine.forward([Item(KEY, PROMPT, 0, (0,), samples=True, window=(0,))])
    assert engine.progress.layers_of(1) == engine.progress.layers == engine.fingerprint.layers
    engine.progress.begin(2)
    assert engine.progress.layers_of(2) == 0


def test_equal_models_have_equal_fingerprints_and_others_do_not(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "same", "llama")
    write_checkpoint(tmp_path / "theta", "llama", rope_theta=20000.0)
    write_checkpoint(tmp_path / "seed", "llama", seed=1)

    def name(directory: Path) -> str:
        return Engine.load(CONFIG, directory).fingerprint.model

    own = name(checkpoint("llama"))
    assert name(tmp_path / "same") == own
    assert len({own, name(tmp_path / "theta"), name(tmp_path / "seed")}) == 3


def test_the_fingerprint_tells_type_and_shape_of_the_pages() -> None:
    config = EngineConfig(device="cpu", dtype="bf16", page_size=64, kv_tokens=1024)
    print_ = Engine.load(config, checkpoint("qwen3")).fingerprint
    assert (print_.dtype, print_.page_size) == ("bf16", 64)
    assert (print_.layers, print_.kv_heads, print_.head_dim) == (2, 2, 32)


def test_an_item_that_cannot_run_has_its_error_and_the_others_go_on(engine: Engine) -> None:
    wanted = greedy_first(engine)
    begin(engine, [Talk(KEY, PROMPT, ()), Talk(OTHER, PROMPT, ())])
    unknown = RoomKey(7, 1)
    results = engine.forward(
        [
            Item(unknown, PROMPT, 0, (0,), True),
            Item(OTHER, PROMPT, 0, (64,), True),
            Item(KEY, PROMPT, 0, (3,), True),
            Item(KEY, PROMPT, 0, (4,), True),
        ]
    )
    assert [result.key for result in results] == [unknown, OTHER, KEY, KEY]
    assert "has not begun" in results[0].error
    assert "page outside 0..63" in results[1].error
    assert results[2].error == ""
    assert results[2].token is not None
    assert results[2].token.id == wanted
    assert "twice" in results[3].error


def test_a_room_that_can_never_run_says_why_with_each_item(engine: Engine) -> None:
    engine.begin(Sequence(KEY, Sampling(repetition_penalty=1.1), (VOCABULARY,)))
    (result,) = engine.forward([Item(KEY, (1,), 1, (0,), True)])
    assert result.error == f"a token id outside 0..{VOCABULARY - 1}"


def test_a_batch_of_errors_alone_runs_nothing(engine: Engine) -> None:
    assert engine.forward([]) == []
    (result,) = engine.forward([Item(KEY, PROMPT, 0, (0,), True)])
    assert result.token is None


def test_ending_is_idempotent_and_a_room_may_begin_again(engine: Engine) -> None:
    wanted = greedy_first(engine)
    engine.end(KEY)
    for _ in range(2):
        engine.begin(Sequence(KEY, GREEDY, PROMPT))
    (result,) = engine.forward([Item(KEY, PROMPT, 0, (0,), True)])
    assert result.token is not None
    assert result.token.id == wanted
    engine.end(KEY)
    engine.end(KEY)
    (result,) = engine.forward([Item(KEY, PROMPT, 0, (0,), True)])
    assert "has not begun" in result.error


def test_a_chunk_that_does_not_sample_chooses_no_token(engine: Engine) -> None:
    begin(engine, [Talk(KEY, PROMPT, ())])
    (result,) = engine.forward([Item(KEY, PROMPT[:2], 0, (0,), False)])
    assert (result.token, result.error) == (None, "")


def test_log_probabilities_are_of_the_raw_logits(engine: Engine) -> None:
    plain = Talk(KEY, PROMPT, (0,), Sampling(temperature=0, logprobs=2))
    warm = Talk(OTHER, PROMPT, (1,), Sampling(temperature=5.0, top_k=1, min_p=0.5, logprobs=2))
    silent = Talk(RoomKey(3, 1), PROMPT, (2,))
    talks = [plain, warm, silent]
    begin(engine, talks)
    talk_on(engine, talks, 1)
    assert plain.said[0].logprob == pytest.approx(warm.said[0].logprob)
    assert plain.said[0].top[0] == (plain.said[0].id, plain.said[0].logprob)
    assert len(warm.said[0].top) == 2
    assert (silent.said[0].logprob, silent.said[0].top) == (None, ())


def test_prompt_log_probabilities_begin_where_they_are_wanted(engine: Engine) -> None:
    whole = Talk(KEY, PROMPT, (0,), Sampling(temperature=0, prompt_logprobs=0))
    part_asked = Sampling(temperature=0, prompt_logprobs=0, prompt_logprobs_start=2)
    part = Talk(OTHER, PROMPT, (1,), part_asked)
    begin(engine, [whole, part])
    talk_on(engine, [whole, part], 1, chunk=2)
    assert [token.id for token in whole.prompt_logprobs] == list(PROMPT)
    assert whole.prompt_logprobs[0].logprob is None
    assert part.prompt_logprobs == whole.prompt_logprobs[2:]


def test_a_prompt_log_probability_whose_past_was_not_run_is_an_error(engine: Engine) -> None:
    begin(engine, [Talk(KEY, PROMPT, (), Sampling(prompt_logprobs=0, prompt_logprobs_start=2))])
    (result,) = engine.forward([Item(KEY, PROMPT[2:], 2, (0,), True)])
    assert "1 was not run" in result.error
    (result,) = engine.forward([Item(KEY, PROMPT[1:], 1, (0,), True)])
    assert [token.id for token in result.prompt_logprobs] == list(PROMPT[2:])


def test_a_greedy_room_says_the_same_beside_rooms_that_want_more(engine: Engine) -> None:
    told = Sampling(temperature=0.0, max_tokens=64, logprobs=2)
    wanted = Talk(KEY, PROMPT, (0, 1, 2))
    begin(engine, [wanted])
    talk_on(engine, [wanted], 40)
    plain = Talk(KEY, PROMPT, (3, 5, 4))
    others = [Talk(OTHER, PROMPT, (6, 7), told), Talk(RoomKey(3, 1), PROMPT[:2], (8, 9, 10, 11))]
    begin(engine, [plain, *others])
    talk_on(engine, [plain, *others[:1]], 20)
    talk_on(engine, [plain, *others[1:]], 40, chunk=3)
    assert plain.tokens == wanted.tokens
    assert others[0].tokens == wanted.tokens[:20]
    assert all(token.logprob is None for token in plain.said)


def test_logits_that_are_not_finite_fail_their_room_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][9] = float("nan")
    save_file(tensors, path, {"format": "pt"})
    engine = Engine.load(CONFIG, tmp_path)
    begin(engine, [Talk(KEY, (9,), ()), Talk(OTHER, (8,), ())])
    bad, good = engine.forward([Item(KEY, (9,), 0, (0,), True), Item(OTHER, (8,), 0, (1,), True)])
    assert "not finite" in bad.error
    assert good.token is not None


def test_warming_up_leaves_no_trace(engine: Engine) -> None:
    wanted = greedy_first(engine)
    fresh = Engine.load(CONFIG, checkpoint("llama"))
    fresh.warm_up()
    address, size = fresh.kv_memory()
    assert not any(ctypes.string_at(address, size))
    assert greedy_first(fresh) == wanted


@pytest.mark.parametrize("kv_tokens", [16, 32])
def test_the_smallest_pool_can_be_warmed_up(kv_tokens: int) -> None:
    Engine.load(CONFIG, checkpoint("llama"), kv_tokens=kv_tokens).warm_up()


def test_a_lane_thread_may_run_what_another_thread_loaded(engine: Engine) -> None:
    wanted, found = greedy_first(engine), []
    lane = threading.Thread(target=lambda: found.append(greedy_first(engine)))
    lane.start()
    lane.join(timeout=60)
    assert found == [wanted]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig(device="cpu", max_model_len=POSITIONS + 1), "was made for 512"),
        (EngineConfig(device="cpu", page_size=64, kv_tokens=32), "0 pages of 64"),
    ],
)
def test_a_size_that_cannot_be_is_the_operators_error(config: EngineConfig, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        Engine.load(config, checkpoint("llama"))


def test_a_shorter_limit_holds() -> None:
    config = EngineConfig(device="cpu", kv_tokens=1024, max_model_len=3)
    engine = Engine.load(config, checkpoint("llama"))
    begin(engine, [Talk(KEY, PROMPT, ())])
    (result,) = engine.forward([Item(KEY, PROMPT, 0, (0,), True)])
    assert "limit is 3" in result.error


def test_ends_of_text_come_from_the_generation_config_then_the_config(tmp_path: Path) -> None:
    assert eos_token_ids(tmp_path) == ()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert eos_token_ids(tmp_path) == (3,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    assert eos_token_ids(tmp_path) == (4, 5)


def test_bf16_says_almost_what_fp32_says() -> None:
    config = EngineConfig(device="cpu", dtype="bf16", kv_tokens=1024)
    engines = [Engine.load(either, checkpoint("llama")) for either in (CONFIG, config)]
    asked = Sampling(temperature=0, prompt_logprobs=0)
    pairs = []
    for engine in engines:
        talk = Talk(KEY, tuple(range(3, 60)), (0, 1, 2, 3), asked)
        begin(engine, [talk])
        talk_on(engine, [talk], 1)
        pairs.append(torch.tensor([token.logprob for token in talk.prompt_logprobs[1:]]))
    assert (pairs[0] - pairs[1]).abs().mean() < 0.3


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=7, max_tokens=64)])
def test_a_text_goes_on_in_other_pages_as_if_it_had_never_left(
    engine: Engine, sampling: Sampling
) -> None:
    prompt = tuple(range(3, 40))
    plain = Talk(RoomKey(21, 1), prompt, (0, 1, 2, 3), sampling)
    begin(engine, [plain])
    talk_on(engine, [plain], 16)
    engine.end(plain.key)
    moved = Talk(RoomKey(21, 1), prompt, (3, 1, 0), sampling)
    begin(engine, [moved])
    talk_on(engine, [moved], 9)
    engine.keep(moved.key, moved.pages)
    other = Talk(RoomKey(22, 1), tuple(range(50, 90)), (0, 1, 2, 3))  # in the very same pages
    begin(engine, [other])
    talk_on(engine, [other], 5)
    engine.restore(moved.key, (2, 0, 3))
    moved.pages = (2, 0, 3, 1)
    talk_on(engine, [moved], 16)
    assert moved.tokens == plain.tokens
    with pytest.raises(KeyError):
        engine.restore(moved.key, (2, 0, 3))


def test_what_is_kept_ends_with_its_room_and_needs_as_many_pages(engine: Engine) -> None:
    talk = Talk(RoomKey(23, 1), (1, 2, 3), (0, 1))
    begin(engine, [talk])
    engine.keep(talk.key, (0, 1))
    with pytest.raises(ValueError, match="1 pages for the content of 2"):
        engine.restore(talk.key, (0,))
    engine.end(talk.key)
    with pytest.raises(KeyError):
        engine.restore(talk.key, (0, 1))


def test_a_pool_by_fraction_is_sized_by_what_is_free_and_is_really_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page_bytes = 2 * 2 * 2 * 16 * 16 * 4  # layers, kinds, heads, tokens, head_dim, fp32
    monkeypatch.setattr(reservation, "free_bytes", lambda _: page_bytes * 100)
    config = EngineConfig(device="cpu", dtype="fp32", kv_tokens=0, kv_fraction=0.5)
    engine = Engine.load(config, checkpoint("llama"))
    assert engine.pages == 50
    address, size = engine.kv_memory()
    assert size == 50 * page_bytes
    assert resident_bytes(address) >= size


def test_a_pool_larger_than_what_is_free_is_refused_before_it_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservation, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(OperatorError, match="too much") as caught:
        Engine.load(CONFIG, checkpoint("llama"), kv_tokens=1 << 20)
    assert "engine.kv_tokens to at most" in caught.value.hint


def resident_bytes(address: int) -> int:
    """Return how much of the mapping that holds an address is in memory."""
    holds = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and ":" not in first:
            low, high = (int(end, 16) for end in first.split("-"))
            holds = low <= address < high
        elif holds and first == "Rss:":
            return int(line.split()[1]) << 10
    raise AssertionError("no mapping holds it")


def test_steps_made_before_their_token_was_known_say_the_same(engine: Engine) -> None:
    sampling = Sampling(temperature=1.0, seed=5, max_tokens=64, repetition_penalty=1.2)
    known, ahead = (Talk(RoomKey(n, 1), PROMPT, (n, n + 8), sampling) for n in (1, 2))
    begin(engine, [known, ahead])
    talk_on(engine, [known], 20)
    talk_on(engine, [ahead], 1)
    queued = [
        Item(ahead.key, (NEWEST,), start, ahead.pages, samples=True)
        for start in range(len(PROMPT), len(PROMPT) + 19)
    ]
    for item in queued:
        (result,) = engine.forward([item])
        ahead.take(item, result)
    assert ahead.tokens == known.tokens


def test_a_step_whose_token_was_never_chosen_is_an_error_of_its_room_alone(engine: Engine) -> None:
    talk, other = Talk(KEY, PROMPT, (1,)), Talk(OTHER, PROMPT, (2,))
    begin(engine, [talk, other])
    talk_on(engine, [talk, other], 1)
    missing = Item(KEY, (NEWEST,), len(PROMPT) + 1, (1,), samples=True)
    next_item = Item(OTHER, (NEWEST,), len(PROMPT), (2,), samples=True)
    broken, well = engine.forward([missing, next_item])
    assert "no token was chosen for position 5" in broken.error
    assert well.token is not None


@pytest.fixture(params=["torch", "native"])
def windowed(request: pytest.FixtureRequest) -> Engine:
    """An engine with window pages: three layers with a window of 20 tokens, one without."""
    if request.param == "native":
        library()
    config = msgspec.structs.replace(CONFIG, kernels=request.param, chunk_tokens=32)
    return Engine.load(config, checkpoint("gemma3"), window_rooms=4)


def test_layers_with_a_window_have_pages_of_their_own(windowed: Engine) -> None:
    assert (windowed.pages, windowed.window_pages) == (64, 4 * 5)
    assert windowed.windows.by_layer == (20, 20, None, 20)
    address, size = windowed.kv_memory()
    ends = [
        region.address
        + region.page_bytes * (windowed.pages if region.layer == 2 else windowed.window_pages)
        for region in windowed.kv_regions()
    ]
    assert max(ends) == address + size
    page_bytes = windowed.kv_regions()[0].page_bytes
    assert size == (64 + 3 * 20) * page_bytes * 2 * 2
    assert Engine.load(CONFIG, checkpoint("llama"), window_rooms=4).window_pages == 0


def test_an_item_with_wrong_window_pages_has_its_error_and_the_others_go_on(
    windowed: Engine,
) -> None:
    begin(windowed, [Talk(KEY, PROMPT, ()), Talk(OTHER, PROMPT, ())])
    absent, outside = Item(KEY, PROMPT, 0, (0,), True), Item(KEY, PROMPT, 0, (0,), True, (20,))
    good = Item(OTHER, PROMPT, 0, (1,), True, (19,))
    for bad, words in ((absent, "0 to 0 are needed"), (outside, "window page outside 0..19")):
        results = windowed.forward([bad, good])
        assert words in results[0].error
        assert results[1].error == ""
        assert results[1].token is not None


def test_warming_up_leaves_no_trace_in_either_pool(windowed: Engine) -> None:
    windowed.warm_up()
    address, size = windowed.kv_memory()
    assert not any(ctypes.string_at(address, size))


def test_a_text_goes_on_beside_its_window_pages_when_the_others_were_away(
    windowed: Engine,
) -> None:
    prompt = tuple(range(3, 60))
    plain, moved = (Talk(RoomKey(n, 1), prompt, (n, n + 8, n + 16, n + 24, n + 32)) for n in (1, 2))
    begin(windowed, [plain, moved])
    talk_on(windowed, [plain], 16)
    talk_on(windowed, [moved], 9)
    windowed.keep(moved.key, moved.pages[:4])
    windowed._memory.full.memory.zero_()
    windowed.restore(moved.key, (50, 49, 48, 47))
    moved.pages = (50, 49, 48, 47, 60)
    talk_on(windowed, [moved], 16)
    assert moved.tokens == plain.tokens

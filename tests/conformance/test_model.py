"""Every model says what transformers says, token for token: split = unsplit = the reference.

On a CUDA device, too: in fp32 (no ``tf32``) token for token, in bf16 within a bound. The last test
tells how many tokens were compared, by architecture and cell.
"""

from __future__ import annotations

import functools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from daemons.cluster.model import DEFAULT_MODEL
from daemons.cluster.models import model_directory
from daemons.engine.config import EngineConfig
from daemons.engine.device import DTYPES
from daemons.engine.engine import Engine
from daemons.engine.gguf.companion import write_companion
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from tests.support import checkpoints
from tests.support.breadth import CONFIGS, breadth_checkpoint
from tests.support.checkpoints import ARCHITECTURES, KINDS, POSITIONS, VOCABULARY
from tests.support.devices import EACH_DEVICE, Where, device, device_name, each_cell
from tests.support.engines import Talk, begin, hand_over, prefill, step, talk_on
from tests.support.gguf_files import SAYABLE, write_gguf

TOKENS = 8  # said after each prompt
CHUNK = 32
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)  # page and chunk, one less, one more
MAIN_KINDS = tuple(ARCHITECTURES.values())
FEW = (1, 17, 33, 100)  # of the lengths, for what transformers' classes run
PAGE_SIZES = (1, 16, 64)
CELLS = [(kind, page_size) for kind in (*MAIN_KINDS, *CONFIGS) for page_size in PAGE_SIZES]
# What a device repeats, as much as its few minutes allow: the general attention is the same code
# for any page in fp32, and tests/gpu has the larger ones.
GPU_CELLS = [(kind, 16) for kind in (*MAIN_KINDS, *CONFIGS)]
GPU_KINDS = tuple(kind for kind, _ in GPU_CELLS)
# where, kind, cell: tokens that were equal
COMPARED: dict[Where, dict[str, Counter[str]]] = {
    "cpu": defaultdict(Counter),
    "gpu": defaultdict(Counter),
}
# How far bf16 log-probabilities of a prompt may be from transformers' in fp32: the median, as a
# part of the logits' standard deviation; and the mean, as a multiple of what transformers' own bf16
# is off by. (A worst case has no bound where a rounding may choose another expert.)
# A device adds up in another order than the CPU that both are measured by.
BF16_MEDIAN: dict[Where, float] = {"cpu": 0.04, "gpu": 0.06}
BF16_MEAN: dict[Where, float] = {"cpu": 1.5, "gpu": 2.0}
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = ("What is the capital of France?", "Tell me about the moon in one paragraph.")


def checkpoint(kind: str) -> Path:
    return breadth_checkpoint(kind) if kind in CONFIGS else checkpoints.checkpoint(kind)


def lengths_of(kind: str) -> tuple[int, ...]:
    return FEW if kind in CONFIGS else LENGTHS


@functools.cache
def engine_of(
    kind: str,
    page_size: int,
    where: Where,
    dtype: str = "fp32",
    copy: int = 0,
    kernels: str = "auto",
) -> Engine:
    """Return an engine; another ``copy`` has a pool of its own."""
    config = EngineConfig(
        device=device_name(where),
        dtype=dtype,
        page_size=page_size,
        kv_tokens=4096,
        kernels="torch" if where == "gpu" else kernels,  # so is a CPU that stands in
    )
    return Engine.load(config, checkpoint(kind), window_rooms=16)


@functools.cache
def prompt_of(length: int) -> tuple[int, ...]:
    draw = random.Random(length)
    return tuple(draw.randrange(VOCABULARY) for _ in range(length))


@functools.cache
def reference_model(directory: str, dtype: str = "fp32") -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=DTYPES[dtype],
        attn_implementation="eager",  # the others leave soft-caps out
    ).eval()


@functools.cache
def reference(directory: str, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """Return what transformers' ``generate`` says after a prompt, greedily."""
    ids = torch.tensor([prompt])
    said = reference_model(directory).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return said[0, len(prompt) :].tolist()


def talks_of(engine: Engine, lengths: tuple[int, ...], *, scattered: bool) -> list[Talk]:
    """Return one room per length; its pages are neighbours, or scattered over the pool."""
    order = list(range(engine.pages))
    if scattered:
        random.Random(5).shuffle(order)
    talks = []
    for room, length in enumerate(lengths, start=1):
        needed = -(-(length + TOKENS) // engine.page_size)
        pages, order = tuple(order[:needed]), order[needed:]
        talks.append(Talk(RoomKey(room, 1), prompt_of(length), pages))
    return talks


def expect_reference(kind: str, talks: list[Talk], where: Where, cell: str) -> None:
    directory = str(checkpoint(kind))
    found = {len(talk.prompt): talk.tokens for talk in talks}
    assert found == {len(talk.prompt): reference(directory, talk.prompt, TOKENS) for talk in talks}
    COMPARED[where][kind][cell] += sum(len(tokens) for tokens in found.values())


@EACH_DEVICE
def test_fp32_is_not_rounded_on_the_way(where: Where) -> None:
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=draw) for _ in "ab")
    exact = left.double() @ right.double()
    found = (left.to(device(where)) @ right.to(device(where))).cpu()
    assert (found - exact).abs().max() < 1e-4  # tf32 is off by 1e-2


@pytest.mark.parametrize(
    ("kind", "kernels", "where"),
    each_cell(
        [(kind, kernels) for kernels in ("auto", "torch") for kind in (*KINDS, *CONFIGS)],
        on_gpu=[(kind, "auto") for kind in (*KINDS, *CONFIGS)],
    ),
)
def test_a_room_alone_says_what_transformers_says(kind: str, kernels: str, where: Where) -> None:
    engine = engine_of(kind, 16, where, kernels=kernels)
    talks = talks_of(engine, lengths_of(kind), scattered=False)
    for talk in talks:
        begin(engine, [talk])
        talk_on(engine, [talk], TOKENS, chunk=CHUNK)
        engine.end(talk.key)
    expect_reference(kind, talks, where, "alone" if kernels == "auto" else kernels)


@pytest.mark.parametrize("scattered", [False, True], ids=["neighbours", "scattered"])
@pytest.mark.parametrize(("kind", "page_size", "where"), each_cell(CELLS, GPU_CELLS))
def test_rooms_in_one_batch_at_various_stages_say_what_transformers_says(
    *, kind: str, page_size: int, where: Where, scattered: bool
) -> None:
    engine = engine_of(kind, page_size, where)
    talks = talks_of(engine, lengths_of(kind), scattered=scattered)
    begin(engine, talks)
    for arrived in range(1, len(talks)):  # one more room per forward
        live = [talk for talk in talks[:arrived] if len(talk.said) < TOKENS]
        step(engine, live, CHUNK)
    talk_on(engine, talks, TOKENS, chunk=CHUNK)
    expect_reference(kind, talks, where, f"batch/{page_size}")


@pytest.mark.parametrize(("kind", "page_size", "where"), each_cell(CELLS, GPU_CELLS))
def test_a_room_that_changes_hands_says_what_transformers_says(
    kind: str, page_size: int, where: Where
) -> None:
    source, target = (engine_of(kind, page_size, where, copy=copy) for copy in (0, 1))
    talks = talks_of(source, lengths_of(kind), scattered=True)
    theirs = list(reversed(range(target.pages)))
    for talk in talks:
        prefill(source, talk, chunk=CHUNK)
        pages, theirs = theirs[: len(talk.pages)], theirs[len(talk.pages) :]
        hand_over(source, target, talk, pages)
    begin(target, talks)
    talk_on(target, talks, TOKENS)
    expect_reference(kind, talks, where, f"split/{page_size}")


@pytest.mark.parametrize(("kind", "where"), each_cell(zip(SAYABLE), on_gpu=[("llama",)]))
def test_a_gguf_file_says_what_transformers_says_of_the_directory_it_was_made_of(
    kind: str, where: Where, tmp_path: Path
) -> None:
    directory, made = tmp_path / "directory", tmp_path / "made"
    made.mkdir()
    checkpoints.write_checkpoint(directory, kind, **SAYABLE[kind])
    write_gguf(directory, tmp_path / "tiny.gguf")
    write_companion(tmp_path / "tiny.gguf", made)
    config = EngineConfig(device=device_name(where), dtype="fp32", kv_tokens=1024)
    engine = Engine.load(config, made)
    talks = talks_of(engine, FEW, scattered=False)
    begin(engine, talks)
    talk_on(engine, talks, TOKENS, chunk=CHUNK)
    wanted = {talk.prompt: reference(str(directory), talk.prompt, TOKENS) for talk in talks}
    assert {talk.prompt: talk.tokens for talk in talks} == wanted
    COMPARED[where][kind]["gguf"] += sum(len(talk.tokens) for talk in talks)


@EACH_DEVICE
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MAIN_KINDS)
def test_a_sampled_room_that_changes_hands_goes_on_as_if_it_had_not(
    kind: str, dtype: str, where: Where
) -> None:
    sampling = Sampling(
        temperature=0.9,
        top_p=0.95,
        seed=7,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=0.3,
        logprobs=3,
    )
    source, target = (engine_of(kind, 16, where, dtype, copy) for copy in (0, 1))
    whole = Talk(RoomKey(1, 1), prompt_of(40), (0, 1, 2, 3), sampling)
    split = Talk(RoomKey(2, 1), prompt_of(40), (4, 5, 6, 7), sampling)
    begin(source, [whole])
    talk_on(source, [whole], TOKENS)
    prefill(source, split)
    hand_over(source, target, split, (9, 3, 5, 1))
    begin(target, [split])
    talk_on(target, [split], TOKENS)
    assert split.said == whole.said


@functools.cache
def reference_logits(kind: str, prompt: tuple[int, ...], dtype: str = "fp32") -> torch.Tensor:
    """Return transformers' logits after each token, ``[tokens, vocabulary]``."""
    with torch.inference_mode():
        said = reference_model(str(checkpoint(kind)), dtype)(torch.tensor([prompt]))
    logits: torch.Tensor = said.logits[0].float()
    return logits


def judged(logits: torch.Tensor, prompt: tuple[int, ...]) -> torch.Tensor:
    """Return the log-probability of each token of a prompt but the first."""
    return logits.log_softmax(dim=-1)[range(len(prompt) - 1), prompt[1:]]


@pytest.mark.parametrize(
    ("kind", "where"), each_cell(zip((*KINDS, *CONFIGS)), on_gpu=zip(GPU_KINDS))
)
def test_prompt_log_probabilities_are_those_of_transformers_for_any_chunk(
    kind: str, where: Where
) -> None:
    engine = engine_of(kind, 16, where)
    prompt = prompt_of(100)
    logits = reference_logits(kind, prompt)
    wanted = judged(logits, prompt).tolist()
    for chunk in (CHUNK,) if kind in CONFIGS else (1, 7, 32, 100):
        sampling = Sampling(temperature=0.0, prompt_logprobs=2)
        talk = Talk(RoomKey(1, chunk), prompt, tuple(range(8)), sampling)
        prefill(engine, talk, chunk=chunk)
        first, *rest = talk.prompt_logprobs
        assert (first.id, first.logprob) == (prompt[0], None)
        assert [token.id for token in rest] == list(prompt[1:])
        assert [token.logprob for token in rest] == pytest.approx(wanted, abs=1e-3)
        best = logits[:-1].argmax(dim=-1).tolist()
        assert [token.top[0][0] for token in rest] == best


@EACH_DEVICE
@pytest.mark.parametrize("kind", GPU_KINDS)
def test_bf16_log_probabilities_stay_within_the_stated_bound(kind: str, where: Where) -> None:
    engine = engine_of(kind, 16, where, "bf16")
    ours, theirs, spreads = [], [], []
    for length in range(97, 103):
        prompt = prompt_of(length)
        logits = reference_logits(kind, prompt)
        wanted = judged(logits, prompt)
        sampling = Sampling(temperature=0.0, prompt_logprobs=0)
        talk = Talk(RoomKey(1, length), prompt, tuple(range(8)), sampling)
        prefill(engine, talk, chunk=CHUNK)
        found = torch.tensor([token.logprob for token in talk.prompt_logprobs[1:]])
        ours.append((found - wanted).abs())
        theirs.append((judged(reference_logits(kind, prompt, "bf16"), prompt) - wanted).abs())
        spreads.append(logits.std())
    off = torch.cat(ours)
    assert off.median() <= BF16_MEDIAN[where] * max(spreads)
    assert off.mean() <= BF16_MEAN[where] * torch.cat(theirs).mean()


@EACH_DEVICE
def test_the_longest_context_says_what_transformers_says(where: Where) -> None:
    engine = engine_of("llama", 16, where)
    prompt = prompt_of(POSITIONS - TOKENS)
    talk = Talk(RoomKey(1, 1), prompt, tuple(range(POSITIONS // 16)))
    begin(engine, [talk])
    talk_on(engine, [talk], TOKENS, chunk=100)
    assert talk.tokens == reference(str(checkpoint("llama")), prompt, TOKENS)


@EACH_DEVICE
def test_the_embedded_model_says_what_transformers_says(where: Where) -> None:
    directory = model_directory(DEFAULT_MODEL)
    words = Tokenizer.from_file(str(directory / "tokenizer.json"))
    config = EngineConfig(device=device_name(where), dtype="fp32", kv_tokens=512)
    source, target = Engine.load(config, directory), Engine.load(config, directory)
    talks = [
        Talk(
            RoomKey(room, 1),
            tuple(words.encode(CHAT.format(question)).ids),
            tuple(range(room * 8, room * 8 + 8)),
        )
        for room, question in enumerate(QUESTIONS)
    ]
    for talk in talks:
        prefill(source, talk, chunk=16)
        hand_over(source, target, talk, tuple(reversed(talk.pages)))
    begin(target, talks)
    talk_on(target, talks, 24)
    wanted = [reference(str(directory), talk.prompt, 24) for talk in talks]
    assert [talk.tokens for talk in talks] == wanted
    assert "Paris" in words.decode(talks[0].tokens)


@EACH_DEVICE
def test_every_architecture_was_compared_in_every_cell(
    where: Where, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    compared = COMPARED[where]
    cells = list(dict.fromkeys(cell for found in compared.values() for cell in found))
    lines = [f"{f'tokens equal, {where}':<28}" + "".join(f"{cell:>10}" for cell in cells)]
    lines += [
        f"{kind:<28}" + "".join(f"{found[cell] or '-':>10}" for cell in cells)
        for kind, found in compared.items()
    ]
    tell("\n".join(lines))
    if request.config.option.keyword or set(compared) < {*KINDS, *CONFIGS}:
        pytest.skip("only some of the tests above were run")
    every, ways = CELLS if where == "cpu" else GPU_CELLS, ("batch", "split")
    alone = {"alone", "torch"} if where == "cpu" else {"alone"}
    sayable = SAYABLE if where == "cpu" else ("llama",)
    for kind, found in compared.items():
        wanted = {f"{way}/{size}" for way in ways for other, size in every if other == kind}
        assert set(found) == {*alone, *wanted, *(["gguf"] if kind in sayable else [])}

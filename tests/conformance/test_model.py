"""Every model says what transformers says, token for token: split = unsplit = the reference.

The last test prints how many tokens were compared, by architecture and cell.
"""

from __future__ import annotations

import functools
import random
from collections import Counter, defaultdict
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
from tests.support.engines import Talk, begin, hand_over, prefill, step, talk_on
from tests.support.gguf_files import SAYABLE, write_gguf

TOKENS = 8  # said after each prompt
CHUNK = 32
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)  # page and chunk, one less, one more
MAIN_KINDS = tuple(ARCHITECTURES.values())
FEW = (1, 17, 33, 100)  # of the lengths, for what transformers' classes run
OURS = [(kind, page_size) for kind in MAIN_KINDS for page_size in (1, 16, 64)]
CELLS = [*OURS, *((kind, 16) for kind in CONFIGS)]
COMPARED: dict[str, Counter[str]] = defaultdict(Counter)  # kind, cell: tokens that were equal
# How far bf16 log-probabilities of a prompt may be from transformers' in fp32: the median, as a
# part of the logits' standard deviation; and the mean, as a multiple of what transformers' own bf16
# is off by. (A worst case has no bound where a rounding may choose another expert.)
BF16_MEDIAN, BF16_MEAN = 0.04, 1.5
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = ("What is the capital of France?", "Tell me about the moon in one paragraph.")


def checkpoint(kind: str) -> Path:
    return breadth_checkpoint(kind) if kind in CONFIGS else checkpoints.checkpoint(kind)


def lengths_of(kind: str) -> tuple[int, ...]:
    return FEW if kind in CONFIGS else LENGTHS


@functools.cache
def engine_of(
    kind: str, page_size: int, dtype: str = "fp32", copy: int = 0, kernels: str = "auto"
) -> Engine:
    """Return an engine; another ``copy`` has a pool of its own."""
    config = EngineConfig(
        device="cpu", dtype=dtype, page_size=page_size, kv_tokens=4096, kernels=kernels
    )
    return Engine.load(config, checkpoint(kind))


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


def expect_reference(kind: str, talks: list[Talk], cell: str) -> None:
    directory = str(checkpoint(kind))
    found = {len(talk.prompt): talk.tokens for talk in talks}
    assert found == {len(talk.prompt): reference(directory, talk.prompt, TOKENS) for talk in talks}
    COMPARED[kind][cell] += sum(len(tokens) for tokens in found.values())


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("kind", [*KINDS, *CONFIGS])
def test_a_room_alone_says_what_transformers_says(kind: str, kernels: str) -> None:
    engine = engine_of(kind, 16, kernels=kernels)
    talks = talks_of(engine, lengths_of(kind), scattered=False)
    for talk in talks:
        begin(engine, [talk])
        talk_on(engine, [talk], TOKENS, chunk=CHUNK)
        engine.end(talk.key)
    expect_reference(kind, talks, "alone" if kernels == "auto" else kernels)


@pytest.mark.parametrize("scattered", [False, True], ids=["neighbours", "scattered"])
@pytest.mark.parametrize(("kind", "page_size"), CELLS)
def test_rooms_in_one_batch_at_various_stages_say_what_transformers_says(
    *, kind: str, page_size: int, scattered: bool
) -> None:
    engine = engine_of(kind, page_size)
    talks = talks_of(engine, lengths_of(kind), scattered=scattered)
    begin(engine, talks)
    for arrived in range(1, len(talks)):  # one more room per forward
        live = [talk for talk in talks[:arrived] if len(talk.said) < TOKENS]
        step(engine, live, CHUNK)
    talk_on(engine, talks, TOKENS, chunk=CHUNK)
    expect_reference(kind, talks, f"batch/{page_size}")


@pytest.mark.parametrize(("kind", "page_size"), CELLS)
def test_a_room_that_changes_hands_says_what_transformers_says(kind: str, page_size: int) -> None:
    source, target = engine_of(kind, page_size), engine_of(kind, page_size, copy=1)
    talks = talks_of(source, lengths_of(kind), scattered=True)
    theirs = list(reversed(range(target.pages)))
    for talk in talks:
        prefill(source, talk, chunk=CHUNK)
        pages, theirs = theirs[: len(talk.pages)], theirs[len(talk.pages) :]
        hand_over(source, target, talk, pages)
    begin(target, talks)
    talk_on(target, talks, TOKENS)
    expect_reference(kind, talks, f"split/{page_size}")


@pytest.mark.parametrize("kind", SAYABLE)
def test_a_gguf_file_says_what_transformers_says_of_the_directory_it_was_made_of(
    kind: str, tmp_path: Path
) -> None:
    directory, made = tmp_path / "directory", tmp_path / "made"
    made.mkdir()
    checkpoints.write_checkpoint(directory, kind, **SAYABLE[kind])
    write_gguf(directory, tmp_path / "tiny.gguf")
    write_companion(tmp_path / "tiny.gguf", made)
    engine = Engine.load(EngineConfig(device="cpu", dtype="fp32", kv_tokens=1024), made)
    talks = talks_of(engine, FEW, scattered=False)
    begin(engine, talks)
    talk_on(engine, talks, TOKENS, chunk=CHUNK)
    wanted = {talk.prompt: reference(str(directory), talk.prompt, TOKENS) for talk in talks}
    assert {talk.prompt: talk.tokens for talk in talks} == wanted
    COMPARED[kind]["gguf"] += sum(len(talk.tokens) for talk in talks)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MAIN_KINDS)
def test_a_sampled_room_that_changes_hands_goes_on_as_if_it_had_not(kind: str, dtype: str) -> None:
    sampling = Sampling(
        temperature=0.9,
        top_p=0.95,
        seed=7,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=0.3,
        logprobs=3,
    )
    source, target = engine_of(kind, 16, dtype), engine_of(kind, 16, dtype, copy=1)
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


@pytest.mark.parametrize("kind", [*KINDS, *CONFIGS])
def test_prompt_log_probabilities_are_those_of_transformers_for_any_chunk(kind: str) -> None:
    engine = engine_of(kind, 16)
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


@pytest.mark.parametrize("kind", [*MAIN_KINDS, *CONFIGS])
def test_bf16_log_probabilities_stay_within_the_stated_bound(kind: str) -> None:
    engine = engine_of(kind, 16, "bf16")
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
    assert off.median() <= BF16_MEDIAN * max(spreads)
    assert off.mean() <= BF16_MEAN * torch.cat(theirs).mean()


def test_the_longest_context_says_what_transformers_says() -> None:
    engine = engine_of("llama", 16)
    prompt = prompt_of(POSITIONS - TOKENS)
    talk = Talk(RoomKey(1, 1), prompt, tuple(range(POSITIONS // 16)))
    begin(engine, [talk])
    talk_on(engine, [talk], TOKENS, chunk=100)
    assert talk.tokens == reference(str(checkpoint("llama")), prompt, TOKENS)


def test_the_embedded_model_says_what_transformers_says() -> None:
    directory = model_directory(DEFAULT_MODEL)
    words = Tokenizer.from_file(str(directory / "tokenizer.json"))
    config = EngineConfig(device="cpu", dtype="fp32", kv_tokens=512)
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


def test_every_architecture_was_compared_in_every_cell(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = list(dict.fromkeys(cell for found in COMPARED.values() for cell in found))
    lines = [f"{'tokens equal':<28}" + "".join(f"{cell:>10}" for cell in cells)]
    lines += [
        f"{kind:<28}" + "".join(f"{found[cell] or '-':>10}" for cell in cells)
        for kind, found in COMPARED.items()
    ]
    with capsys.disabled():
        print("", *lines, sep="\n")
    if request.config.option.keyword or set(COMPARED) < {*KINDS, *CONFIGS}:
        pytest.skip("only some of the tests above were run")
    for kind, found in COMPARED.items():
        ways = ("batch", "split")
        wanted = {f"{way}/{size}" for way in ways for other, size in CELLS if other == kind}
        gguf = {"gguf"} if kind in SAYABLE else set()
        assert set(found) == {"alone", "torch", *wanted, *gguf}

"""Greedy tokens through pd-lb, over HTTP and Mooncake TCP, are those of transformers."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from daemons.cluster.models import model_directory
from tests.support.cluster import Cluster, events, post

pytestmark = pytest.mark.live

PAGE, CHUNK = 16, 32  # as in conftest
LENGTHS = (1, PAGE - 1, PAGE, PAGE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
NEW = 16


def reference(model_dir: str, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Return what ``generate`` says in fp32, one prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.generation_config.pad_token_id = 0
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def prompts(vocabulary: int, lengths: tuple[int, ...], seed: int) -> list[list[int]]:
    """Return random prompts of these lengths."""
    draw = random.Random(seed)
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def body(prompt: list[int], new: int, *, stream: bool) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new}
    return {"input_ids": prompt, "sampling_params": sampling, "stream": stream}


def whole(cluster: Cluster, prompt: list[int], new: int = NEW) -> list[int]:
    status, answer = post(f"{cluster.lb}/generate", body(prompt, new, stream=False))
    assert status == 200, answer
    ids: list[int] = answer["output_ids"]
    return ids


def streamed(cluster: Cluster, prompt: list[int], new: int = NEW) -> list[int]:
    *said, last = list(events(f"{cluster.lb}/generate", body(prompt, new, stream=True)))
    assert last == "[DONE]"
    ids: list[int] = json.loads(said[-1])["output_ids"]
    return ids


@pytest.fixture(scope="session")
def smollm_table() -> list[tuple[list[int], list[int]]]:
    asked = prompts(49152, LENGTHS, seed=1)
    model_dir = str(model_directory("smollm2-135m-instruct"))
    return list(zip(asked, reference(model_dir, asked, NEW), strict=True))


@pytest.mark.parametrize("place", range(len(LENGTHS)), ids=[str(n) for n in LENGTHS])
def test_one_request_alone_says_what_transformers_says(
    smollm: Cluster, smollm_table: list[tuple[list[int], list[int]]], place: int
) -> None:
    prompt, expected = smollm_table[place]
    assert whole(smollm, prompt) == expected
    assert streamed(smollm, prompt) == expected


@pytest.mark.parametrize("way", [whole, streamed])
def test_sixteen_requests_at_once_say_what_transformers_says(
    smollm: Cluster, smollm_table: list[tuple[list[int], list[int]]], way: Any
) -> None:
    both = [*smollm_table, *smollm_table]
    assert len(both) == 16
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda pair: way(smollm, pair[0]), both))
    assert said == [expected for _, expected in both]


def test_tiny_models_say_what_transformers_says(tiny: tuple[str, Cluster]) -> None:
    model_dir, cluster = tiny
    asked = prompts(320, LENGTHS, seed=2)
    expected = reference(model_dir, asked, NEW)
    assert [whole(cluster, prompt) for prompt in asked] == expected
    assert [streamed(cluster, prompt) for prompt in asked] == expected
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda prompt: whole(cluster, prompt), [*asked, *asked]))
    assert said == [*expected, *expected]


def test_between_processes_of_one_host_bytes_travel_by_shared_memory(smollm: Cluster) -> None:
    whole(smollm, [5, 6, 7])
    for instance in ("p0", "d0"):
        assert smollm.status(instance)["transport"] == "shm or cma or tcp"
    assert smollm.status("p0")["wires"]["d0"]["transport"] == "shm"
    assert smollm.status("p0")["counters"]["sent_bytes"] > 0

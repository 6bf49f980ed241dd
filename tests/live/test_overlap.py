"""Pages leave behind the forward: nine tenths of a prompt's bytes have landed when it ends.

Of eight chunks seven can have left whole while the eighth is computed, which is 7 / 8; the rest is
that layers leave one by one. Bytes are counted as the lanes count them: a write that returns while
the forward it follows is under way was early. Layers take some milliseconds, so that a lane on a
busy machine has its turn before the last of them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from daemons.protocol.metadata import ROW_BYTES
from tests.support.checkpoints import VOCABULARY, write_checkpoint
from tests.support.cluster import Cluster, eventually, get, running
from tests.support.faults import Client, body

pytestmark = [pytest.mark.live, pytest.mark.alone]
CHUNK, CHUNKS, ROOMS = 64, 8, 5
LAYERS, KV_HEADS, HEAD_DIM = 16, 4, 64
PROMPT_BYTES = CHUNK * CHUNKS * LAYERS * KV_HEADS * HEAD_DIM * 2 * 4  # in fp32
PREFILLS = {"p0": "auto", "p1": "mooncake"}
CARRIED_BY = {"p0": ("shm", "cma"), "p1": ("tcp",)}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefills before one decode, each over another backend."""
    folder = tmp_path_factory.mktemp("overlap")
    write_checkpoint(
        folder / "model",
        "llama",
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=1024,
    )
    engine = {"chunk_tokens": CHUNK, "batch_tokens": CHUNK, "kv_tokens": 2048, "dtype": "fp32"}
    sections = {
        "engine": {**engine, "threads": 1},
        "prefill": {
            name: {"prefix_cache": False, "transfer": {"backend": backend}}
            for name, backend in PREFILLS.items()
        },
        "decode": {"d0": {"prefix_cache": False}},
    }
    with running(folder, str(folder / "model"), **sections) as cluster:
        yield cluster


def story(cluster: Cluster, prefill: str, room: int) -> dict[str, Any]:
    (told,) = get(f"{cluster.url(prefill)}/rooms/{room}")["stories"]
    return dict(told)


def sent(cluster: Cluster, prefill: str, room: int) -> dict[str, Any]:
    """Send a prompt of eight chunks over a pair; return prefill's story of it."""
    draw = random.Random(room)
    prompt = [draw.randrange(3, VOCABULARY) for _ in range(CHUNKS * CHUNK)]
    asked = {**body(prompt, 1), "bootstrap_room": room, "bootstrap_instance": prefill}
    legs = [Client(f"{cluster.url(name)}/generate", asked) for name in (prefill, "d0")]
    assert [leg.end().error for leg in legs] == [None, None]
    assert eventually(lambda: not story(cluster, prefill, room)["open"])
    return story(cluster, prefill, room)


@pytest.mark.parametrize("prefill", PREFILLS)
def test_nine_tenths_of_a_prompt_have_landed_when_its_forward_ends(
    pairs: Cluster, prefill: str
) -> None:
    first = 1000 * (1 + list(PREFILLS).index(prefill))
    stories = [sent(pairs, prefill, first + number) for number in range(ROOMS)]
    for told in stories:
        assert told["facts"]["transport"] in CARRIED_BY[prefill]
        assert sum(line["bytes"] for line in told["lines"]) == PROMPT_BYTES + ROW_BYTES
    shares = [float(told["facts"]["overlap_fraction"]) for told in stories]
    print(f"{prefill}: {shares}")
    assert statistics.median(shares) >= 0.9, shares
    shown = pairs.pdctl("trace", "room", f"{first:014x}").stdout
    assert "% behind the forward" in shown

"""A pair with rounded weights says what one engine with them says; another rounding is no pair."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import checkpoint
from tests.support.cluster import post, running
from tests.support.engines import Talk, begin, talk_on

pytestmark = pytest.mark.live
NEW = 12


def test_tokens_are_those_of_one_engine_and_a_plain_decode_gets_no_room(tmp_path: Path) -> None:
    model, draw = checkpoint("llama"), random.Random(3)
    alone = Engine.load(EngineConfig(weights="int4", kv_tokens=1024), model)
    prompts = [tuple(draw.randrange(3, 320) for _ in range(length)) for length in (5, 40, 70)]
    sections = {
        "engine": {"threads": 1, "kv_tokens": 8192, "weights": "int4"},
        "decode": {"d0": {}, "d1": {"engine": {"weights": "auto"}}},
    }
    with running(tmp_path, str(model), **sections) as cluster:
        rows = cluster.instances()
        plain = rows["d1"]["fingerprint"]["model"]
        assert rows["p0"]["fingerprint"]["model"] == f"{plain}.int4"
        assert rows["p0"]["fingerprint"] == rows["d0"]["fingerprint"]
        before = {
            name: cluster.status(name)["counters"].get("rooms_done", 0) for name in ("d0", "d1")
        }
        for room, prompt in enumerate(prompts):
            talk = Talk(RoomKey(room + 1, 1), prompt, tuple(range(6)))
            begin(alone, [talk])
            talk_on(alone, [talk], NEW)
            sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
            for _ in range(2):
                asked = {"input_ids": list(prompt), "sampling_params": sampling}
                status, answer = post(f"{cluster.lb}/generate", asked)
                assert status == 200, answer
                assert answer["output_ids"] == talk.tokens
        after = {name: cluster.status(name)["counters"].get("rooms_done", 0) for name in before}
        assert after == {"d0": before["d0"] + 2 * len(prompts), "d1": before["d1"]}

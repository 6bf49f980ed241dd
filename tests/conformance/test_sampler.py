"""A room's draws are the same on every device: those of the CPU, which the unit tests define."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from daemons.engine.room import RoomState, begin_room
from daemons.engine.sampler import choose
from daemons.engine.step import Sequence
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from tests.support.devices import EACH_DEVICE, Where, device

ROOMS = 64
PROMPT, OUTPUT = (5, 6, 7, 7), (7, 9)
WAYS: dict[str, dict[str, Any]] = {
    "largest": {"temperature": 0.0},
    "plain": {},
    "cold": {"temperature": 0.01},
    "top_k": {"top_k": 20},
    "large top_k": {"top_k": 2000},
    "top_p": {"top_p": 0.9},
    "top_p of top_k": {"top_k": 50, "top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "penalties": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
    },
    "penalties, largest": {"temperature": 0.0, "repetition_penalty": 1.3},
    "bias": {"logit_bias": ((5, 8.0), (6, -100.0))},
    "no end yet": {"min_tokens": 50, "eos_token_ids": (2,), "logit_bias": ((2, 30.0),)},
}


def rooms(way: str, vocabulary: int) -> list[RoomState]:
    return [
        begin_room(
            Sequence(RoomKey(room, 1), Sampling(seed=room, **WAYS[way]), PROMPT, OUTPUT),
            vocabulary,
        )
        for room in range(1, ROOMS + 1)
    ]


@EACH_DEVICE
@pytest.mark.parametrize("vocabulary", [320, 50_257])
@pytest.mark.parametrize("way", WAYS)
@torch.inference_mode()
def test_a_draw_is_the_same_on_every_device(way: str, vocabulary: int, where: Where) -> None:
    draw = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(ROOMS, vocabulary, generator=draw)
    wanted = choose(logits, rooms(way, vocabulary))
    found = choose(logits.to(device(where)), rooms(way, vocabulary))
    assert [choice.token for choice in found] == [choice.token for choice in wanted]
    assert len({choice.token for choice in wanted}) > 1


@EACH_DEVICE
@torch.inference_mode()
def test_rooms_of_all_ways_in_one_batch_draw_as_each_does_alone(where: Where) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(len(WAYS), 5000, generator=draw)
    alone = [
        choose(row.unsqueeze(0), rooms(way, 5000)[:1])[0]
        for row, way in zip(logits, WAYS, strict=True)
    ]
    together = [rooms(way, 5000)[0] for way in WAYS]
    found = choose(logits.to(device(where)), together)
    assert [choice.token for choice in found] == [choice.token for choice in alone]


@EACH_DEVICE
@torch.inference_mode()
def test_logits_that_are_not_finite_end_their_room_alone(where: Where) -> None:
    logits = torch.randn(3, 320).to(device(where))
    logits[1, 7] = float("nan")
    found = choose(logits, rooms("plain", 320)[:3])
    assert [bool(choice.error) for choice in found] == [False, True, False]

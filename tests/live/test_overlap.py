"""Pages leave behind the forward, and the trace tells which share of them did."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.cluster import Cluster, eventually, get, post

pytestmark = pytest.mark.live

TOKENS = 6 * 32  # six chunks


def story(cluster: Cluster, room: int) -> dict[str, Any]:
    (told,) = get(f"{cluster.url('p0')}/rooms/{room}")["stories"]
    return dict(told)


def test_most_of_a_prompt_has_landed_when_its_forward_ends(smollm: Cluster) -> None:
    numbers = itertools.count(1)

    def hidden() -> int:
        """Return the room of a request most of whose bytes were hidden, 0 for none."""
        prompt = [next(numbers), *range(100, 99 + TOKENS)]
        asked = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
        status, answer = post(f"{smollm.lb}/generate", asked)
        assert status == 200, answer
        room: int = answer["meta_info"]["bootstrap_room"]
        assert eventually(lambda: not story(smollm, room)["open"])
        share = float(story(smollm, room)["facts"].get("overlap_fraction", 0))
        assert share <= 1
        return room if share > 0.8 else 0

    room = eventually(hidden, within_s=60)
    assert room
    shown = smollm.pdctl("trace", "room", f"{room:014x}").stdout
    assert "% behind the forward" in shown

"""What endpoints share."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.front.validate import Place
from daemons.protocol.ids import RoomKey
from daemons.protocol.topology import Role, State
from daemons.runtime.http import Refusal
from tests.support.fake_rank import rank_ready
from tests.support.front_bench import front_bench, prefill_info
from tests.support.tiny_model import CONTEXT_TOKENS


async def test_the_limit_is_that_of_the_model_or_of_the_smallest_pool(tmp_path: Path) -> None:
    async with front_bench(tmp_path, ready=False) as bench:
        assert bench.desk.limit == CONTEXT_TOKENS
        bench.desk.ready = [rank_ready(max_tokens=10_000)]
        assert bench.desk.limit == CONTEXT_TOKENS
        bench.desk.ready = [rank_ready(max_tokens=300), rank_ready(max_tokens=200)]
        assert bench.desk.limit == 200


async def test_a_named_prefill_is_taken_at_its_word(tmp_path: Path) -> None:
    async with front_bench(tmp_path) as bench:
        bench.book.instances = [prefill_info("p0")]
        assert await bench.desk.prefill_of(Place(RoomKey(7, 1), "p9")) == "p9"
        assert await bench.desk.prefill_of(Place(RoomKey(7, 1), "")) == "p0"


async def test_an_instance_that_left_meanwhile_opens_no_room(tmp_path: Path) -> None:
    async with front_bench(tmp_path, Role.PREFILL) as bench:
        bench.desk.life.enter(State.DRAINING, "x")
        with pytest.raises(Refusal):
            bench.desk.call([], 1.0)

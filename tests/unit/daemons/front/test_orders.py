"""From a prompt and its wishes to an order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemons.front.orders import Request, order
from daemons.front.sampling import LogprobWishes
from daemons.front.validate import Place
from daemons.protocol.api.sampling_params import Wishes
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import Refusal
from tests.support.front_bench import Bench, front_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


def request(start: int = 0, **wishes: Any) -> Request:
    place = Place(RoomKey(7, 2), "p0")
    return Request(place, (1, 2, 3), Wishes(**wishes), LogprobWishes(0, 0, start), "rid")


async def test_an_order_holds_everything_that_a_room_needs(bench: Bench) -> None:
    one = await order(
        bench.desk, request(stop=["x"], skip_special_tokens=False, no_stop_trim=True), 5
    )
    assert (one.key, one.prompt, one.prefill, one.rid) == (RoomKey(7, 2), (1, 2, 3), "p0", "rid")
    assert (one.stops, one.skip_special_tokens, one.keep_stop) == (("x",), False, True)
    assert one.sampling.max_tokens == 5


async def test_special_tokens_and_stop_strings_are_left_out_unless_wanted(bench: Bench) -> None:
    one = await order(bench.desk, request(), 5)
    assert (one.skip_special_tokens, one.keep_stop) == (True, False)


async def test_a_place_behind_the_prompt_has_no_log_probabilities(bench: Bench) -> None:
    await order(bench.desk, request(start=2), 5)
    with pytest.raises(Refusal, match="logprob_start_len: 3, the prompt has 3 tokens"):
        await order(bench.desk, request(start=3), 5)

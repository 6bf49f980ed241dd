"""How much of a prompt may be taken from the cache."""

from __future__ import annotations

import msgspec
import pytest

from daemons.kv.reuse import reusable_pages
from daemons.protocol.generate import Sampling
from tests.support.cores import submit


@pytest.mark.parametrize(
    ("tokens", "pages"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (13, 3)]
)
def test_at_least_one_token_is_left_to_compute(tokens: int, pages: int) -> None:
    assert reusable_pages(submit(1, tokens), 4) == pages


@pytest.mark.parametrize(("start", "pages"), [(0, 0), (1, 0), (4, 0), (5, 1), (9, 2), (99, 2)])
def test_log_probabilities_of_the_prompt_are_run_from_below_the_first(
    start: int, pages: int
) -> None:
    sampling = Sampling(prompt_logprobs=0, prompt_logprobs_start=start)
    asked = msgspec.structs.replace(submit(1, 12), sampling=sampling)
    assert reusable_pages(asked, 4) == pages

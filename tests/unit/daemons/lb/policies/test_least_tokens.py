from daemons.lb.fleet import Wish
from daemons.lb.policies.least_tokens import LeastTokens

from .conftest import Make


def test_one_long_prompt_weighs_more_than_many_short_ones(one: Make) -> None:
    two = [one("a", rooms=1, tokens=9000), one("b", rooms=5, tokens=500)]
    choice = LeastTokens().pick(two, Wish())
    assert (choice.worker.name, choice.because) == ("b", "least tokens: 500")

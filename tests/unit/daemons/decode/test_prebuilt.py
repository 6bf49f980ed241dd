"""A room goes on as if this process had run the prefill."""

from __future__ import annotations

from daemons.decode.prebuilt import Prebuilt
from daemons.decode.request import Request
from tests.support.cores import key, submit


def test_the_engine_is_to_know_prompt_and_first_token() -> None:
    prebuilt = Prebuilt()
    request = Request(submit(tokens=3), key(), 0.0, 0.0, 2)
    sequence = prebuilt.add(request, 8)
    assert (sequence.prompt, sequence.output) == ((1, 2, 3), (8,))
    assert sequence.sampling == request.submit.sampling
    assert request.output == [8]
    assert prebuilt.rooms == {key(): request}

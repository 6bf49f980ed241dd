"""The table of lengths and ends: what two processes say is what one engine says.

The unsplit reference is our engine in this process, and transformers for greedy texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.protocol.generate import Sampling
from daemons.protocol.ids import RoomKey
from tests.support.checkpoints import POSITIONS, checkpoint
from tests.support.cluster import Cluster, post
from tests.support.engines import Talk, begin, talk_on
from tests.support.faults import Right, arm, ask, body, clear, prompt_of

pytestmark = pytest.mark.live
PAGE, CHUNK, LIMIT = 16, 8, POSITIONS
TABLE = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 100)
KEY = RoomKey(5, 1)


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(dtype="fp32", device="cpu", kv_tokens=1024, page_size=PAGE)
    return Engine.load(config, checkpoint("llama"))


@pytest.fixture(scope="module")
def cluster(chaos_pair: Cluster) -> Iterator[Cluster]:
    clear(chaos_pair, "p0", "d0")
    yield chaos_pair
    clear(chaos_pair, "p0", "d0")


def unsplit(engine: Engine, prompt: list[int], new: int, **wishes: Any) -> Talk:
    """Say it in one process."""
    sampling = Sampling(temperature=0.0, max_tokens=new, **wishes)
    pages = tuple(range(-(-(len(prompt) + new) // PAGE)))
    talk = Talk(KEY, tuple(prompt), pages, sampling)
    begin(engine, [talk])
    talk_on(engine, [talk], new, chunk=CHUNK)
    engine.end(KEY)
    return talk


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("new", [1, 2, PAGE + 1])
@pytest.mark.parametrize("length", TABLE)
def test_split_says_what_unsplit_says(
    cluster: Cluster, engine: Engine, right: Right, length: int, new: int, way: str
) -> None:
    prompt = prompt_of(length, 30)
    ended = ask(cluster, prompt, new, stream=way == "stream").end()
    assert ended.ids == unsplit(engine, prompt, new).tokens == right.ids(prompt, new)
    assert ended.answer["meta_info"]["finish_reason"] == {"type": "length", "length": new}


@pytest.mark.parametrize(
    ("length", "new", "status"),
    [
        (LIMIT - 1, 1, 200),
        (LIMIT - 20, 20, 200),
        (LIMIT, 1, 400),
        (LIMIT - 20, 21, 400),
        (LIMIT + 1, 1, 400),
        (0, 1, 400),
    ],
)
def test_the_limit_is_the_limit_of_the_model(
    cluster: Cluster, right: Right, length: int, new: int, status: int
) -> None:
    prompt = prompt_of(length, 31)
    ended = ask(cluster, prompt, new).end()
    assert ended.status == status, ended
    if status == 200:
        assert ended.ids == right.ids(prompt, new)
    else:
        assert ended.error is not None
        assert ended.error["cause"] in ("request.too_long", "request.invalid")


@pytest.mark.parametrize("side", ["p0", "d0"])
@pytest.mark.parametrize("ignored", ["heeded", "ignored"])
def test_an_end_of_sequence_ends_the_text_unless_it_is_ignored(
    cluster: Cluster, side: str, ignored: str
) -> None:
    arm(cluster, side, "engine.eos")
    ended = ask(cluster, prompt_of(20, 32), 6, ignore_eos=ignored == "ignored").end()
    place = 0 if side == "p0" else 1
    assert ended.ids[place] == 2
    reason = ended.answer["meta_info"]["finish_reason"]
    if ignored == "ignored":
        assert (len(ended.ids), reason["type"]) == (6, "length")
    else:
        assert len(ended.ids) == place + 1
        assert reason == {"type": "stop", "matched": 2}


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_a_stop_token_ends_the_text_where_it_comes(
    cluster: Cluster, right: Right, place: int
) -> None:
    prompt = prompt_of(23, 33)
    free = right.ids(prompt, 8)
    first = free.index(free[place])
    ended = ask(cluster, prompt, 8, stop_token_ids=[free[place]]).end()
    assert ended.ids == free[: first + 1]


@pytest.mark.parametrize("begin_at", [0, 1, 2])
def test_a_stop_string_across_the_hand_over_cuts_the_text(cluster: Cluster, begin_at: int) -> None:
    wishes = {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True}
    asked = {"text": "ten green bottles", "sampling_params": wishes}
    _, free = post(f"{cluster.lb}/generate", asked)
    stop = free["text"][begin_at : begin_at + 3]
    _, cut = post(
        f"{cluster.lb}/generate", {**asked, "sampling_params": {**wishes, "stop": [stop]}}
    )
    assert cut["text"] == free["text"][: free["text"].index(stop)]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_each_item_of_a_batch_has_its_own_room_and_text(cluster: Cluster, right: Right) -> None:
    prompts = [prompt_of(length, 34) for length in (1, PAGE, 40, CHUNK + 1)]
    asked = {**body([1], 7), "input_ids": prompts}
    status, answers = post(f"{cluster.lb}/generate", asked)
    assert status == 200
    assert [one["output_ids"] for one in answers] == [right.ids(prompt, 7) for prompt in prompts]
    assert len({one["meta_info"]["bootstrap_room"] for one in answers}) == len(prompts)


@pytest.mark.parametrize("length", [1, PAGE, CHUNK + 1, 50])
def test_log_probabilities_are_those_of_one_engine(
    cluster: Cluster, engine: Engine, length: int
) -> None:
    prompt = prompt_of(length, 35)
    asked = {**body(prompt, 5), "return_logprob": True, "top_logprobs_num": 2}
    asked["logprob_start_len"] = 0
    status, answer = post(f"{cluster.lb}/generate", asked)
    assert status == 200, answer
    talk = unsplit(engine, prompt, 5, logprobs=2, prompt_logprobs=2)
    meta = answer["meta_info"]
    for shown, known in (
        (meta["output_token_logprobs"], talk.said),
        (meta["input_token_logprobs"], talk.prompt_logprobs),
    ):
        assert [id_ for _, id_, _ in shown] == [token.id for token in known]
        for (logprob, _, _), token in zip(shown, known, strict=True):
            assert logprob == pytest.approx(token.logprob, abs=1e-3)

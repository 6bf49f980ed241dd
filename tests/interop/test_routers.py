"""SGLang's routers, unmodified, drive our prefills and decodes on two addresses."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.cluster import Cluster, events, eventually, get, kill, post
from tests.support.faults import arm, clear, is_empty
from tests.support.others import program, router_argv, routing

pytestmark = [pytest.mark.live, pytest.mark.long]
KINDS = {"sglang-router": "sglang-router", "mini-lb": "sglang-router", "smg": "smg"}
GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
TEXT = {"text": "The capital of France is", "sampling_params": GREEDY}
MODEL = {"temperature": 0, "seed": 3}
CHAT = {**MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
COMPLETION = {**MODEL, "prompt": "The capital", "max_tokens": 6}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if program(KINDS[name], "python") is None:
        pytest.skip(f"{KINDS[name]} is not installed: scripts/interop")
    return name


@pytest.fixture(scope="module")
def router(kind: str, apart: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a router over all four workers; the bootstrap port of a prefill is its own."""
    rows = apart.instances()
    prefills = [(apart.url(name), rows[name]["http_port"]) for name in ("p0", "p1")]
    argv = router_argv(kind, prefills, [apart.url(name) for name in ("d0", "d1")])
    with routing(argv, tmp_path_factory.mktemp("router") / "log") as url:
        assert eventually(lambda: post(f"{url}/generate", TEXT)[0] == 200, 60)
        yield url


def named(cluster: Cluster, path: str) -> dict[str, str]:
    """Return the model as bodies of OpenAI's name it; smg sends requests where it is."""
    if path == "/generate":
        return {}
    return {"model": get(f"{cluster.lb}/v1/models")["data"][0]["id"]}


def rounded(said: Any) -> Any:
    """Return an answer with numbers rounded: routers write them anew, with other digits."""
    if isinstance(said, dict):
        return {name: rounded(value) for name, value in said.items()}
    if isinstance(said, list):
        return [rounded(value) for value in said]
    return round(said, 4) if isinstance(said, float) else said


def texts(path: str, answer: Any) -> list[Any]:
    """Return what an answer says, without what differs from one request to the next."""
    if path == "/generate":
        items = answer if isinstance(answer, list) else [answer]
        return [(item["text"], item["output_ids"]) for item in items]
    said = ("text", "message", "finish_reason", "logprobs")
    return [rounded([choice.get(name) for name in said]) for choice in answer["choices"]]


BODIES = {
    "text": ("/generate", TEXT),
    "ids": ("/generate", {"input_ids": [5, 6, 7], "sampling_params": GREEDY}),
    "batch": ("/generate", {"input_ids": [[5, 6, 7], [8]], "sampling_params": GREEDY}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat, logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "chat, json": ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    "completion": ("/v1/completions", COMPLETION),
    "completion, batch": ("/v1/completions", {**COMPLETION, "prompt": ["a", "b", "c"]}),
    "completion, logprobs": ("/v1/completions", {**COMPLETION, "logprobs": 2}),
}


@pytest.mark.parametrize("name", BODIES)
def test_an_answer_is_that_of_our_own_balancer(apart: Cluster, router: str, name: str) -> None:
    path, body = BODIES[name]
    body = {**body, **named(apart, path)}
    ours, theirs = post(apart.lb + path, body), post(router + path, body)
    assert (ours[0], theirs[0]) == (200, 200), theirs
    assert texts(path, theirs[1]) == texts(path, ours[1])


@pytest.mark.parametrize("name", ["text", "chat", "completion"])
def test_a_stream_is_that_of_our_own_balancer(apart: Cluster, router: str, name: str) -> None:
    path, body = BODIES[name]
    body = {**body, **named(apart, path)}
    said = []
    for url in (apart.lb, router):
        *data, end = events(url + path, {**body, "stream": True})
        assert end == "[DONE]"
        said.append([json.loads(one) for one in data])
    ours, theirs = said
    if path == "/generate":
        assert [one["text"] for one in theirs] == [one["text"] for one in ours]
        return
    assert [
        [(c.get("delta"), c.get("text"), c["finish_reason"]) for c in one["choices"]]
        for one in theirs
    ] == [
        [(c.get("delta"), c.get("text"), c["finish_reason"]) for c in one["choices"]]
        for one in ours
    ]


def test_each_prompt_token_has_its_log_probability_once(apart: Cluster, router: str) -> None:
    asked = {**TEXT, "return_logprob": True, "logprob_start_len": 0}
    ours, theirs = post(f"{apart.lb}/generate", asked), post(f"{router}/generate", asked)
    assert theirs[0] == 200
    for name in ("input_token_logprobs", "output_token_logprobs"):
        assert rounded(theirs[1]["meta_info"][name]) == rounded(ours[1]["meta_info"][name])
    assert (
        len(theirs[1]["meta_info"]["input_token_logprobs"]) == ours[1]["meta_info"]["prompt_tokens"]
    )


def test_both_prefills_are_found_by_their_ports(apart: Cluster, router: str) -> None:
    def served() -> list[int]:
        return [apart.status(name)["counters"].get("rooms_done", 0) for name in ("p0", "p1")]

    before = served()
    for _ in range(24):
        assert post(f"{router}/generate", TEXT)[0] == 200
    assert all(now > was for was, now in zip(before, served(), strict=True))


def test_a_wrong_request_is_400(router: str) -> None:
    status, answer = post(f"{router}/generate", {**TEXT, "sampling_params": {"temperature": -3}})
    assert status == 400
    assert "temperature" in answer["error"]["message"]


def test_a_failed_try_is_made_again_in_another_room(kind: str, apart: Cluster, router: str) -> None:
    if kind == "mini-lb":
        pytest.skip("it never tries again")
    for name in ("d0", "d1"):
        arm(apart, name, "engine.reject")
    try:
        status, answer = post(f"{router}/generate", TEXT)
        assert status == 200, answer
    finally:
        clear(apart, "d0", "d1")
    failed = [row["room"] for name in ("d0", "d1") for row in apart_failed(apart, name)]
    assert failed
    assert f"{answer['meta_info']['bootstrap_room']:014x}" not in failed


def apart_failed(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Return the rooms of a worker that failed."""
    told = cluster.pdctl("rooms", "--failed", "-o", "json")
    rooms = json.loads(told.stdout)["rooms"]
    return [row for row in rooms if name in json.dumps(row)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_room_on_both_sides(
    kind: str, apart: Cluster, router: str, *, stream: bool
) -> None:
    if kind == "mini-lb" and not stream:
        pytest.skip("it does not tell workers that its client left")
    parts = urlsplit(router)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    long = {**TEXT, "stream": stream, "sampling_params": {**GREEDY, "max_new_tokens": 400}}
    head = {"Content-Type": "application/json"}
    for name in ("d0", "d1"):
        arm(apart, name, "engine.delay", seconds=0.05, times=0)
    try:
        connection.request("POST", "/generate", json.dumps(long), head)
        running = lambda: sum(apart.status(n)["rooms"]["running"] for n in ("d0", "d1"))  # noqa: E731
        assert eventually(running, 20)
        connection.close()
        assert all(is_empty(apart, name, 5) for name in ("d0", "d1", "p0", "p1"))
    finally:
        clear(apart, "d0", "d1")
    for name in ("d0", "d1", "p0", "p1"):
        assert eventually(lambda name=name: apart.is_idle(name)), apart.status(name)  # type: ignore[misc]


def test_of_a_pair_whose_decode_drains_prefill_hears_in_time(apart: Cluster, router: str) -> None:
    try:
        for name in ("d0", "d1"):
            assert apart.pdctl("drain", name, "--yes").returncode == 0
        begun_s = time.monotonic()
        status, answer = post(f"{router}/generate", TEXT, 60)
        assert status in (500, 502, 503), answer
        assert time.monotonic() - begun_s < 15
    finally:
        for name in ("d0", "d1"):
            assert apart.pdctl("undrain", name).returncode == 0


def test_a_decode_that_is_killed_costs_an_error_and_comes_back(
    kind: str, apart: Cluster, router: str
) -> None:
    if kind == "mini-lb":
        pytest.skip("it neither looks at health nor tries again")
    kill(apart.daemon_pids("d1")[0])
    status, answer = post(f"{router}/generate", TEXT, 100)
    assert status in (200, 500, 502, 503), answer
    assert eventually(lambda: apart.instances()["d1"]["state"] == "ready", 60)
    assert eventually(lambda: post(f"{router}/generate", TEXT)[0] == 200, 90)

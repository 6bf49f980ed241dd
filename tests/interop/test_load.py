"""A load tester and OpenAI's client, unmodified, against pd-lb."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import openai
import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.others import program

pytestmark = pytest.mark.live
CLIENTS, SECONDS = 8, 6


@pytest.mark.long
def test_locust_sees_no_failure_and_leaves_nothing_behind(apart: Cluster) -> None:
    locust = program("locust", "locust")
    if locust is None:
        pytest.skip("locust is not installed: scripts/interop")
    argv = [str(locust), "-f", str(Path(__file__).parent / "locustfile.py"), "--host", apart.lb]
    argv += ["--headless", "-u", str(CLIENTS), "-r", str(CLIENTS), "-t", f"{SECONDS}s", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS + 60)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert {row["name"] for row in told} == {"/v1/chat/completions", "stream", "/v1/completions"}
    for row in told:
        assert (row["num_failures"], row["num_requests"] > 0) == (0, True), row
    for name in ("p0", "p1", "d0", "d1"):
        assert eventually(lambda name=name: apart.is_idle(name)), apart.status(name)  # type: ignore[misc]


def test_the_openai_client_talks_with_workers_on_two_addresses(apart: Cluster) -> None:
    with openai.OpenAI(base_url=f"{apart.lb}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        answer = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "hello"}],
            max_completion_tokens=6,
            n=2,
            temperature=0,
        )
        assert len({choice.message.content for choice in answer.choices}) == 1
        chunks = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "hello"}],
            max_completion_tokens=6,
            temperature=0,
            stream=True,
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == answer.choices[0].message.content

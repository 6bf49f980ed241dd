from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.lb.keys import load_api_keys

from .conftest import FakeWorker, MakeBalancer, idle, read


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_key_names_its_client_and_nothing_else_does(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# clients\n\nanna: {hashed('a' * 64)}\nben:{hashed('b' * 64)}\n")
    keys = load_api_keys(file)
    assert keys.client_of("Bearer " + "a" * 64) == "anna"
    assert keys.client_of("bearer  " + "b" * 64) == "ben"
    for wrong in ("", "Bearer ", "Basic " + "a" * 64, "Bearer a", hashed("a" * 64), "Bearer \xff"):
        assert keys.client_of(wrong) is None
    assert hashed("a" * 64) not in repr(keys)


@pytest.mark.parametrize(
    "text", ["", "# none\n", "anna\n", "anna:00\n", "anna:x\n", f":{'0' * 64}\n",
             f"a:{'0' * 64}\na:{'1' * 64}\n"],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(OperatorError):
        load_api_keys(file)
    with pytest.raises(OperatorError):
        load_api_keys(tmp_path / "none")


async def test_with_keys_only_who_shows_one_is_served_and_no_worker_sees_it(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, tmp_path: Path
) -> None:
    lb = await balancer(p0, d0)
    file = tmp_path / "keys"
    file.write_text(f"anna:{hashed('secret')}\n")
    lb.service.keys = load_api_keys(file)
    for headers in ({}, {"Authorization": "Bearer other"}):
        for path in ("/generate", "/abort_request"):
            async with lb.post(path, {"text": "a"}, headers=headers) as response:
                status, answer = await read(response)
                assert (status, answer["error"]["cause"]) == (401, "request.unauthorized")
                assert response.headers["WWW-Authenticate"] == "Bearer"
        async with lb.get("/v1/models", headers=headers) as response:
            assert response.status == 401
    assert d0.bodies == []
    mine = {"Authorization": "Bearer secret"}
    async with lb.post("/generate", {"text": "a"}, headers=mine) as response:
        assert await read(response) == (200, {"text": "decode"})
    async with lb.get("/v1/models", headers=mine) as response:
        assert response.status == 200
    async with lb.get("/health") as response:
        assert response.status == 200
    assert all("Authorization" not in worker.headers[0] for worker in (p0, d0))
    await idle(lb)


async def test_prefixes_are_shared_within_one_key_where_that_is_asked_for(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker, tmp_path: Path
) -> None:
    lb = await balancer(p0, d0, salt_cache=True)
    file = tmp_path / "keys"
    file.write_text(f"anna:{hashed('secret')}\n")
    lb.service.keys = load_api_keys(file)
    mine = {"Authorization": "Bearer secret"}
    async with lb.post("/generate", {"text": "a"}, headers=mine) as response:
        assert response.status == 200
    assert [json.loads(worker.bodies[-1])["cache_salt"] for worker in (p0, d0)] == [
        "4:anna:",
        "4:anna:",
    ]
    await idle(lb)

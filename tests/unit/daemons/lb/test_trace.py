from __future__ import annotations

import re

import pytest

from daemons.lb.trace import traceparent

from .conftest import FakeWorker, MakeBalancer

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01")


def test_a_trace_of_the_client_goes_on() -> None:
    assert traceparent({"traceparent": GIVEN}) == GIVEN


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00-1-2-01",
        GIVEN.upper(),
        "ff" + GIVEN[2:],
        "00-" + "0" * 32 + GIVEN[35:],
        GIVEN[:36] + "0" * 16 + "-01",
        GIVEN + "x",
    ],
)
def test_what_is_none_begins_a_new_one(given: str) -> None:
    one, other = (traceparent({"traceparent": given}) for _ in range(2))
    assert FORM.fullmatch(one)
    assert one != other


async def test_both_legs_are_of_one_trace_and_the_clients_name_comes_back(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    lb = await balancer(p0, d0)
    async with lb.post("/generate", {"text": "a"}, headers={"X-Request-ID": "mine"}) as response:
        assert response.headers.getall("X-Request-ID") == ["mine"]
    async with lb.post("/generate", b"{", headers={"X-Request-ID": "mine"}) as response:
        assert (response.status, response.headers["X-Request-ID"]) == (400, "mine")
    told = [worker.headers[0]["traceparent"] for worker in (p0, d0)]
    assert told[0] == told[1]
    assert FORM.fullmatch(told[0])

from __future__ import annotations

from daemons.lb.cors import cors_headers

from .conftest import FakeWorker, MakeBalancer

PAGE = {"Origin": "https://page.example"}


def test_only_named_origins_are_let_read() -> None:
    low = {"origin": "https://page.example"}
    assert cors_headers((), low) == {}
    assert cors_headers(("https://other.example",), low) == {}
    assert cors_headers(("*",), {}) == {}
    for allowed in (("*",), ("https://page.example",)):
        said = cors_headers(allowed, low)
        assert said["Access-Control-Allow-Origin"] == "https://page.example"
        assert said["Vary"] == "Origin"


async def test_off_by_default_and_on_for_both_paths_when_set(
    balancer: MakeBalancer, p0: FakeWorker, d0: FakeWorker
) -> None:
    field = "Access-Control-Allow-Origin"
    for settings, told in (({}, None), ({"cors_origins": ("*",)}, PAGE["Origin"])):
        lb = await balancer(p0, d0, **settings)
        async with lb.post("/generate", {"text": "a"}, headers=PAGE) as response:
            assert (response.status, response.headers.get(field)) == (200, told)
        async with lb.get("/health", headers=PAGE) as response:
            assert response.headers.get(field) == told
        asking = {**PAGE, "Access-Control-Request-Method": "POST"}
        async with lb.http.options(lb.site.url + "/generate", headers=asking) as response:
            assert response.status == (204 if told else 405)
            assert response.headers.get(field) == told

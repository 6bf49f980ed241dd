"""One session string for several backends."""

from __future__ import annotations

import pytest

from daemons.transfer.sessions import joined, part


def test_a_backend_finds_its_own_part() -> None:
    both = joined({"mooncake": "[::1]:15001", "cma": "cma:a.1:2:3:ff:00"})
    assert part(both, "mooncake") == "[::1]:15001"
    assert part(both, "cma") == "cma:a.1:2:3:ff:00"
    assert part(both, "nixl") == ""


@pytest.mark.parametrize("session", ["127.0.0.1:15001", "loopback:1:2", "", "a,b=c"])
def test_a_session_without_parts_is_anybodys(session: str) -> None:
    assert part(session, "mooncake") == session

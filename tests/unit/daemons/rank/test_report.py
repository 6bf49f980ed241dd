from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from daemons.decode.config import DecodeConfig
from daemons.decode.scheduler import Scheduler
from daemons.protocol.generate import Ask, AskFor
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.topology import Fingerprint, Role
from daemons.rank.equipment import Equipment
from daemons.rank.report import RATE_WINDOW_S, Report

ME = PeerId("d0", 7)
PRINT = Fingerprint("m", "fp32", 16, 1, 1, 1)


def report() -> Report:
    buffers = RegisterBuffers(
        ME, 1, "127.0.0.1", 1, "here", PRINT, 4, (KvRegion(1, 1, 0, 0, 0),), 1, ROW_BYTES, 4
    )
    core = Scheduler(ME, DecodeConfig(rows=4), buffers, 4)
    equipment = SimpleNamespace(
        me=ME,
        role=Role.DECODE,
        clock=lambda: 100.0,
        mailbox=SimpleNamespace(dropped={"no message": 2}),
        engine=SimpleNamespace(fingerprint=PRINT),
        backend=SimpleNamespace(transport="tcp"),
        reactor=SimpleNamespace(lag_max_s=0.25),
        config_hash="abc",
    )
    return Report(cast(Equipment, equipment), core)


def status(of: Report, now: float = 103.0) -> dict[str, object]:
    body = of.answer(Ask(1, AskFor.STATUS), now)["status"]
    assert isinstance(body, dict)
    return body


def test_a_status_has_the_pools_of_the_core_and_what_the_mailbox_dropped() -> None:
    body = status(report())
    assert body["pages"] == {
        "free": 4,
        "cached": 0,
        "request": 0,
        "writer": 0,
        "quarantined": 0,
    }
    assert body["pages_total"] == 4
    assert body["credits"] == {"tokens": 64, "rows": 4, "places": 128, "queue": 0}
    assert body["rooms"] == {
        "prealloc": 0,
        "transfer": 0,
        "forward": 0,
        "prebuilt": 0,
        "running": 0,
        "retracted": 0,
    }
    assert body["counters"] == {
        "messages_dropped:no message": 2.0,
        "cache_evictions": 0,
    }
    assert body["loop_lag_max_s"] == 0.25
    assert body["up_s"] == 3.0
    assert body["state"] == "ready"


def test_the_wire_rate_is_bytes_by_the_time_spent_writing_and_old_writes_fade() -> None:
    made = report()
    assert status(made)["wire_bytes_per_s"] is None
    made.wrote(1000, 0.5)
    assert status(made)["wire_bytes_per_s"] == 2000
    made.wrote(0, 2 * RATE_WINDOW_S)
    slow = status(made)["wire_bytes_per_s"]
    made.wrote(100_000, 1.0)
    assert slow == 1000 / (0.5 + 2 * RATE_WINDOW_S)
    assert status(made)["wire_bytes_per_s"] == 100_500 / (0.25 + RATE_WINDOW_S + 1.0)


def test_rooms_and_stories_are_plain_lists() -> None:
    made = report()
    assert made.answer(Ask(1, AskFor.ROOMS), 1.0) == {"rooms": []}
    assert made.answer(Ask(1, AskFor.STORY, 5), 1.0) == {"stories": []}

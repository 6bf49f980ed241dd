"""Every screen at 80 and at 160 columns, as it was looked at: ``pytest --screens`` writes anew."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import Line, RoomRow, Story
from pdctl import checks
from pdctl.commands import drain as drain_command
from pdctl.commands import maybe_stuck
from pdctl.finding import Check, Status
from tests.support.fake_fleet import DECODE_ROOMS, Fleet, Said, worker_status
from tests.support.stories import DECODE, LB, PREFILL, ROOM, ended

HERE = Path(__file__).parent / "screens"
HEX = f"{ROOM:014x}"
BAD = 0x1B2C3D4E5F6071
CAUSE = Failure(Cause.PEER_DIED, "transfer", "p0", "its session is dead: no word for 3.0 s")
FOUND = [
    Check("python", Status.OK, "3.11.7"),
    Check("nofile", Status.WARN, "1024", "ulimit -n 16384, or LimitNOFILE= in the unit"),
    Check(
        "rdma-mlx5_0-1",
        Status.FAIL,
        "DOWN, 400 Gb/sec (4X NDR), InfiniBand, GID none",
        "the link is down: cable, switch port, subnet manager",
    ),
    Check("clock-d0", Status.OK, "+0.4 ms (±0.3)"),
    Check("pair-p0-d0", Status.OK, "verified, 402 MiB in 131.0 ms, 3.2 GB/s", "",
          ("p0", "d0"), 3.2e9),
    Check("pair-p0-d1", Status.FAIL, "peer.unreachable in prealloc (p0)",
          "pdctl events --kind failed; pdctl logs p0 and d1", ("p0", "d1")),
]  # fmt: skip


@pytest.fixture
def full(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A cluster at work, with a good room, a failed one and one that stands still."""
    now_s = time.time()
    fleet.p0.routes["/status"] = 200, worker_status(
        "p0", "prefill", {"bootstrap": 2, "waiting": 1, "forward": 1, "inflight": 3},
        ttft_p50_s=0.31, ttft_p99_s=0.812, wire_bytes_per_s=3.1e9,
    )  # fmt: skip
    fleet.d0.routes["/status"] = 200, worker_status(
        "d0", "decode", DECODE_ROOMS, state="draining", itl_p50_s=0.021, itl_p99_s=0.038,
        counters={"output_tokens": 1000.0},
    )  # fmt: skip
    bad = ended(msgspec.structs.replace(DECODE, room=BAD), CAUSE, 100.6)
    stands = Story(9, 1, "d0", "decode", (Line(100.0, "", "transfer", "256 pages"),), True)
    told = [
        (fleet.lb, [LB, msgspec.structs.replace(LB, room=BAD)]),
        (fleet.p0, [PREFILL]),
        (fleet.d0, [DECODE, bad, stands]),
    ]
    rows = [
        RoomRow(9, 1, "transfer", 42.0, "p0", 4096, 0),
        RoomRow(ROOM, 1, "done", 60.0, "p0", 4096, 212),
        RoomRow(BAD, 1, "failed", 30.0, "p0", 4096, 3, CAUSE),
    ]
    for daemon, _ in told:
        daemon.routes["/rooms"] = 200, {"rooms": [], "now_s": now_s}
    fleet.d0.routes["/rooms"] = 200, {"rooms": msgspec.to_builtins(rows), "now_s": now_s}
    fleet.lb.routes["/rooms"] = 200, {"rooms": msgspec.to_builtins(rows[1:2]), "now_s": now_s}
    for daemon, stories in told:
        for story in stories:
            where = f"/rooms/{story.room:014x}"
            daemon.routes[where] = 200, {"stories": msgspec.to_builtins([story])}
    events = [
        {"at_s": now_s - 90, "event": "new", "instance": "p0", "detail": "10.0.0.1:30000"},
        {"at_s": now_s - 31, "event": "lost", "instance": "p0"},
        {"at_s": now_s - 20, "event": "draining", "instance": "d0", "detail": "10.0.0.2:30000"},
    ]
    fleet.bootstrap.routes["/events"] = 200, {"now_s": now_s, "events": events}
    monkeypatch.setattr(checks, "checks", lambda *_, **__: iter(FOUND))
    monkeypatch.setattr(maybe_stuck.time, "sleep", lambda _: None)
    monkeypatch.setattr(drain_command, "LOOK_S", 0.0)
    return fleet


def emptying(fleet: Fleet) -> None:
    """Let d0 lose a room with each look."""
    left = iter([3, 3, 2, 1, 0])

    def status(_: bytes) -> tuple[int, Any]:
        return 200, worker_status("d0", "decode", {"running": next(left)}, state="draining")

    fleet.d0.routes["/status"] = status
    fleet.d0.routes["/drain"] = 200, {"state": "draining"}


SCREENS = {
    "status": ("status",),
    "top": ("top", "-n", "1"),
    "rooms": ("rooms",),
    "events": ("events",),
    "maybe-stuck": ("maybe-stuck",),
    "trace-good": ("trace", "room", HEX),
    "trace-failed": ("trace", "room", f"{BAD:014x}"),
    "slowest": ("trace", "--slowest", "5"),
    "doctor": ("doctor",),
    "drain": ("drain", "d0", "--yes"),
}


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was_looked_at(
    name: str,
    width: int,
    full: Fleet,
    pdctl: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    if name == "drain":
        emptying(full)
    said = pdctl(*SCREENS[name], "-c", full.config)
    shown = re.sub(r"\b\d\d:\d\d:\d\d\b", "HH:MM:SS", said.out + said.err)
    shown = re.sub(r"\d+ s to the deadline", "N s to the deadline", shown)
    shown = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    path = HERE / f"{name}-{width}.txt"
    if request.config.getoption("--screens"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert shown == path.read_text()
    assert "defect" not in shown
    if name != "drain":  # words for people are not cut
        assert max(map(len, shown.splitlines())) <= width

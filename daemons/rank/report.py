"""What a rank answers when its front asks: its status, its rooms, the story of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from daemons.kv.ledger import Ledger
from daemons.protocol.generate import Ask, AskFor, Chaos
from daemons.protocol.story import Wire, WorkerStatus
from daemons.rank.equipment import VERSION, Equipment
from daemons.runtime.faults import NOT_ALLOWED
from daemons.runtime.peers import Peers
from daemons.runtime.recorder import Recorder

RATE_WINDOW_S = 10.0  # seconds of writing after which older writes count half


class Reported(Protocol):
    """What both cores have in common for a report."""

    draining: bool
    pages: Ledger
    window: Ledger  # of window pages
    rows: Ledger
    peers: Peers
    recorder: Recorder

    @property
    def credits(self) -> dict[str, int]:
        """What another room may count on."""
        ...

    @property
    def counters(self) -> Mapping[str, float]:
        """Counts since the start."""
        ...


class Report:
    """Answers the front's questions about one core."""

    def __init__(self, equipment: Equipment, core: Reported) -> None:
        self._equipment = equipment
        self._core = core
        self._began_s = equipment.clock()
        self.wires: Callable[[], dict[str, Wire]] = dict  # what prefill writes, and to whom
        self._written_bytes = 0.0
        self._writing_s = 0.0

    def wrote(self, sent_bytes: int, took_s: float) -> None:
        """Count a write, for the wire rate; old ones fade."""
        if self._writing_s > RATE_WINDOW_S:
            self._written_bytes /= 2
            self._writing_s /= 2
        self._written_bytes += sent_bytes
        self._writing_s += took_s

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        """Return the body of a snapshot, in plain values."""
        if isinstance(ask, Chaos):
            return {"armed": [], "refused": NOT_ALLOWED}
        match ask.what:
            case AskFor.STATUS:
                body: Any = {"status": self._status(now)}
            case AskFor.ROOMS:
                body = {"rooms": self._core.recorder.rows(now)}
            case AskFor.STORY:
                body = {"stories": self._core.recorder.stories(ask.room)}
        plain: dict[str, object] = msgspec.to_builtins(body)
        return plain

    def _status(self, now: float) -> WorkerStatus:
        core, equipment = self._core, self._equipment
        dropped = {
            f"messages_dropped:{why}": float(count)
            for why, count in equipment.mailbox.dropped.items()
        }
        rate = self._written_bytes / self._writing_s if self._writing_s else None
        return WorkerStatus(
            instance=equipment.me.instance,
            role=equipment.role.value,
            epoch=equipment.me.epoch,
            state="draining" if core.draining else "ready",
            version=VERSION,
            up_s=now - self._began_s,
            model=equipment.engine.fingerprint.model,
            transport=equipment.backend.transport,
            rooms=core.recorder.counts(),
            pages=core.pages.counts(),
            pages_total=core.pages.size,
            rows=core.rows.counts(),
            window_pages=core.window.counts() if core.window.size else {},
            peers=core.peers.believed(),
            counters={**core.counters, **dropped},
            wire_bytes_per_s=rate,
            config_hash=equipment.config_hash,
            credits=core.credits,
            stage_times=dict(core.recorder.times),
            wires=self.wires(),
            loop_lag_max_s=equipment.reactor.lag_max_s,
        )

"""Asks the ranks how they are, now and then and whenever somebody wants to know.

The last answer feeds /health, the watchdog and the status line of systemd. The front adds what it
alone knows: its state, its version, and the times that clients see.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from daemons.front.desk import Desk
from daemons.front.ranks import Silent
from daemons.protocol.generate import AskFor
from daemons.protocol.story import WorkerStatus
from daemons.runtime import systemd
from daemons.runtime.log import logger

PERIOD_S = 5.0
PATIENCE_S = 30.0  # no answer for so long: not healthy


class Pulse:
    """The last that was heard of the ranks."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._heard_s = time.monotonic()
        self.patience_s = PATIENCE_S

    def silent_s(self) -> float:
        """Return for how long no rank has answered."""
        return time.monotonic() - self._heard_s

    async def ask(self) -> WorkerStatus:
        """Return the instance's status, fresh.

        Raises:
            Silent: the ranks do not answer, or not with a status.
        """
        bodies = await self._desk.ranks.ask(AskFor.STATUS)
        try:
            told = msgspec.convert(bodies[0].get("status"), WorkerStatus)
        except msgspec.ValidationError as error:
            raise Silent(f"rank 0 answers strangely: {error}") from error
        self._heard_s = time.monotonic()
        self._desk.meter.status = self._completed(told)
        return self._desk.meter.status

    def without_ranks(self) -> WorkerStatus:
        """Return the status of an instance whose ranks are not there yet."""
        config = self._desk.config
        nobody = WorkerStatus(
            instance=config.instance,
            role=config.role.value,
            epoch=config.epoch,
            state="",
            version="",
            up_s=0.0,
            model="",
            transport="",
            rooms={},
            pages={},
            pages_total=0,
            rows={},
            peers={},
            counters={},
        )
        return self._completed(nobody)

    async def keep(self) -> None:
        """Ask every few seconds, oftener where a watchdog wants it; until cancelled."""
        watchdog_s = systemd.watchdog_period_s()
        period_s = min(PERIOD_S, watchdog_s or PERIOD_S)
        while True:
            try:
                status = await self.ask()
            except Silent as silent:
                logger().warning("ranks.silent", text=str(silent))
            else:
                rooms = sum(status.rooms.values())
                line = f"{status.state}, {rooms} rooms, {status.pages.get('free', 0)} free pages"
                systemd.notify("WATCHDOG=1", f"STATUS={line}")
            await asyncio.sleep(period_s)

    def _completed(self, told: WorkerStatus) -> WorkerStatus:
        config, meter = self._desk.config, self._desk.meter
        return msgspec.structs.replace(
            told,
            state=self._desk.life.state.value,
            version=config.version,
            model=config.model_name,
            up_s=time.monotonic() - self._desk.started_s,
            ttft_p50_s=meter.ttft_p50_s,
            itl_p50_s=meter.itl_p50_s,
            ttft_p99_s=meter.ttft_p99_s,
            itl_p99_s=meter.itl_p99_s,
            config_hash=config.config_hash,
            drain_left_s=self._desk.life.drain_left_s(),
        )

"""The first of several processes that share a port: starts them, and is what others see of them.

- Orders are served where they are accepted. All else is handed to the lead, which asks everybody.
- The kernel spreads connections over the processes (SO_REUSEPORT); a socket that systemd holds is
  accepted from by all of them.
- A process that dies is started again; its connections are lost, those of the others are not.
- SIGTERM drains all of them, SIGHUP reaches all of them. The lead alone is in the phone book.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from daemons.lb.merged import Merged
from daemons.runtime.http import make_app
from daemons.runtime.log import Logger, logger

AGAIN_S = 1.0  # before a process that died is started again
UP_S = 60.0
LEAD = "lead"  # socket of the lead, in the folder


@dataclass(frozen=True, slots=True)
class Share:
    """Which of the processes this one is, and what they share."""

    number: int
    count: int
    folder: Path
    fd: int | None  # of a socket that systemd holds
    port: int  # where every process listens by itself

    @property
    def face(self) -> Path:
        """Where this process answers for itself."""
        return face_of(self.folder, self.number)

    @property
    def lead(self) -> str:
        """Where the lead answers for all."""
        return str(self.folder / LEAD)


def face_of(folder: Path, number: int) -> Path:
    """Return where a process answers for itself."""
    return folder / f"face-{number}"


@dataclass(slots=True)
class Processes:
    """The processes, and what keeps them up."""

    config: Path
    count: int
    folder: Path
    held: socket.socket | None
    port: int
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    is_ending: bool = False
    log: Logger = field(default_factory=logger)

    async def start(self, number: int) -> None:
        """Start one."""
        where = ["--at", str(self.port)] if self.held is None else ["--fd", str(self.held.fileno())]
        self.running[number] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "daemons.lb", "--config", str(self.config),
            "--workers", str(self.count), "--process", str(number), "--folder", str(self.folder),
            *where,
            pass_fds=() if self.held is None else (self.held.fileno(),),
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
        )  # fmt: skip

    async def keep(self, number: int) -> None:
        """Start one again whenever it dies, until all shall end."""
        while True:
            process = self.running[number]
            code = await process.wait()
            if self.is_ending:
                return
            self.log.error("process.died", process=number, pid=process.pid, code=code)
            await asyncio.sleep(AGAIN_S)
            if self.is_ending:
                return
            await self.start(number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for process in self.running.values():
            if process.returncode is None:
                process.send_signal(number)

    async def ended(self, within_s: float) -> None:
        """Return when all have ended, which after ``within_s`` they must."""
        waits = [asyncio.create_task(one.wait()) for one in self.running.values()]
        _, late = await asyncio.wait(waits, timeout=within_s)
        if late:
            self.log.warning("processes.killed", processes=len(late))
            self.signal(signal.SIGKILL)
            await asyncio.wait(late)

    async def up(self, faces: list[aiohttp.ClientSession]) -> None:
        """Return when all answer; raises TimeoutError."""
        async with asyncio.timeout(UP_S):
            for face in faces:
                while True:
                    if await _answers(face):
                        break
                    await asyncio.sleep(0.05)


async def _answers(face: aiohttp.ClientSession) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with face.get("http://process/health"):
            return True
    return False


async def serve_merged(
    folder: Path, count: int, body_bytes_limit: int
) -> tuple[list[aiohttp.ClientSession], Callable[[], asyncio.Future[None]]]:
    """Answer for all; return how each process is asked, and what ends it."""
    faces = [
        aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(face_of(folder, number))), auto_decompress=False
        )
        for number in range(count)
    ]
    app = make_app(body_bytes_limit=body_bytes_limit)
    app.middlewares.insert(0, closing)
    app.add_routes(Merged(faces).routes())
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(folder / LEAD)).start()

    async def close() -> None:
        await runner.cleanup()
        for face in faces:
            await face.close()

    return faces, lambda: asyncio.ensure_future(close())


@web.middleware
async def closing(
    request: web.Request, handler: Callable[[web.Request], object]
) -> web.StreamResponse:
    """End the connection: its next request may be an order, which is not read here."""
    response: web.StreamResponse = await handler(request)  # type: ignore[misc]
    response.force_close()
    return response

"""Ends of neighbours' processes, told as they happen.

What we have mapped of a process would else outlive it for as long as nobody writes to it: a dead
decode's whole pool, while the next one wants to have its own.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from threading import Lock, Thread


class Deaths:
    """One thread that waits for processes, from the first one on."""

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], object]] = {}  # pidfd -> what is called at its end
        self._lock = Lock()
        self._thread: Thread | None = None
        self._poll = select.epoll()
        self._bell, self._rope = os.pipe2(os.O_CLOEXEC)  # closing the rope rings the bell
        self._poll.register(self._bell)

    def watch(self, pid: int, then: Callable[[], object]) -> None:
        """Call ``then``, from the thread, when the process that has this number now ends.

        Raises:
            OSError: there is none.
        """
        process = os.pidfd_open(pid)
        with self._lock:
            self._waiting[process] = then
            self._poll.register(process, select.EPOLLIN)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="deaths", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for nobody any more. Once."""
        os.close(self._rope)
        if self._thread is not None:
            self._thread.join()
        for file in (*self._waiting, self._bell):
            os.close(file)
        self._waiting.clear()
        self._poll.close()

    def _run(self) -> None:
        while True:
            for file, _ in self._poll.poll():
                if file == self._bell:
                    return
                with self._lock:
                    then = self._waiting.pop(file)
                    self._poll.unregister(file)
                os.close(file)
                then()

"""Ends of neighbours' processes, asked for or told as they happen.

What we have mapped of a process would else outlive it for as long as nobody writes to it: a dead
decode's whole pool, while the next one wants to have its own.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable
from threading import Lock, Thread


class Life:
    """A process, which no other one becomes: not even one of the same number."""

    def __init__(self, pid: int) -> None:
        """Take the one that has this number now.

        Raises:
            OSError: there is none.
        """
        self.file = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self.file)

    def has_ended(self) -> bool:
        """Say whether it has; costs two microseconds."""
        poll = select.poll()
        poll.register(self.file, select.POLLIN)
        return bool(poll.poll(0))


class Deaths:
    """One thread that waits for processes, from the first one on."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Life, Callable[[], object]]] = {}  # by the life's file
        self._lock = Lock()
        self._thread: Thread | None = None
        self._closed = False
        self._poll = select.epoll()
        self._bell, self._rope = os.pipe2(os.O_CLOEXEC)  # closing the rope rings the bell
        self._poll.register(self._bell)

    def watch(self, life: Life, then: Callable[[], object]) -> None:
        """Call ``then``, from the thread, when a process ends; each life once, none after close."""
        with self._lock:
            if self._closed:
                return
            self._waiting[life.file] = life, then
            self._poll.register(life.file, select.EPOLLIN)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="deaths", daemon=True)
                self._thread.start()

    def unwatch(self, life: Life) -> None:
        """Wait for a process no more, whether it has ended or not."""
        with self._lock:
            if not self._closed and life.file in self._waiting:
                del self._waiting[life.file]
                self._poll.unregister(life.file)

    def close(self) -> None:
        """Wait for nobody any more. Once."""
        with self._lock:
            self._closed = True
        os.close(self._rope)
        if self._thread is not None:
            self._thread.join()
        os.close(self._bell)
        self._waiting.clear()
        self._poll.close()

    def _run(self) -> None:
        while True:
            for file, _ in self._poll.poll():
                if file == self._bell:
                    return
                if then := self._taken(file):
                    then()

    def _taken(self, file: int) -> Callable[[], object] | None:
        """Take out a process that has ended; another one may have its file's number by now."""
        with self._lock:
            life, then = self._waiting.get(file, (None, None))
            if life is None or not life.has_ended():
                return None
            del self._waiting[file]
            self._poll.unregister(file)
            return then

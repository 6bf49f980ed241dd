"""Threads for what blocks: a lane does one job after the other and reports each as an event.

A lane never dies of a job: whatever is raised becomes the event that the job's owner chose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

Post = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Job:
    """Something that blocks; ``do`` returns the event to report, None for none."""

    do: Callable[[], object | None]
    broken: Callable[[str], object]  # the event when ``do`` raised, from the error in words


class Lane:
    """One thread and its queue."""

    def __init__(self, name: str, post: Post) -> None:
        self._post = post
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def close(self, within_s: float) -> bool:
        """End after the jobs that wait; says whether that came to pass within ``within_s``."""
        self._jobs.put(None)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                event = job.do()
            except Exception as error:  # noqa: BLE001 - the lane lives on, the room's owner hears
                event = job.broken(f"{type(error).__name__}: {error}")
            if event is not None:
                self._post(event)

"""The requests that are open now: counted, waited for at the end, and cut when time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class OpenRequests:
    """Tasks that serve requests."""

    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    cut: bool = False  # whoever is cancelled from now on was cut by us
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self.tasks)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count the running task as an open request."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.idle.clear()
        try:
            yield
        finally:
            self.tasks.discard(task)
            if not self.tasks:
                self.idle.set()

    def cut_all(self) -> None:
        """Cancel those that are left; each tells its client why."""
        self.cut = True
        for task in self.tasks:
            task.cancel()

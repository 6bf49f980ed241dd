"""The requests that are open now: counted, waited for at the end, and cut when time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class Untasked(Protocol):
    """An open request that no task serves yet."""

    def go_on(self) -> None:
        """Get a task."""
        ...


@dataclass(slots=True)
class OpenRequests:
    """Tasks that serve requests."""

    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    untasked: set[Untasked] = field(default_factory=set)
    cut: bool = False  # whoever is cancelled from now on was cut by us
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self.tasks) + len(self.untasked)

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
            if not self:
                self.idle.set()

    def enter(self, one: Untasked) -> None:
        """Count a request without a task."""
        self.untasked.add(one)
        self.idle.clear()

    def leave(self, one: Untasked, *, is_over: bool) -> None:
        """It is over, or a task counts from now on."""
        self.untasked.discard(one)
        if is_over and not self:
            self.idle.set()

    def cut_all(self) -> None:
        """Cancel those that are left; each tells its client why."""
        self.cut = True
        for one in list(self.untasked):
            one.go_on()  # its task sees that it is cut
        for task in self.tasks:
            task.cancel()

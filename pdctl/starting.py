"""The words that ``pdctl up`` says while daemons start, and its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from daemons.cluster.load import ClusterFile
from pdctl.errors import CommandError, Exit
from pdctl.readiness import waiting
from pdctl.render import say


class Progress:
    """Who serves already, of those that were started."""

    def __init__(
        self,
        file: ClusterFile,
        names: Sequence[str],
        timeout_s: float,
        show_log: Callable[[str], None],
    ) -> None:
        self._file = file
        self._names = list(names)
        self._began = time.monotonic()
        self._timeout_s = timeout_s
        self._show_log = show_log
        self._up: set[str] = set()

    @property
    def is_ready(self) -> bool:
        """Whether everybody serves."""
        return self._up.issuperset(self._names)

    def leave_out(self, names: Sequence[str]) -> None:
        """Wait no longer for some, whose host is lost."""
        self._names = [name for name in self._names if name not in names]

    def look(self) -> None:
        """Ask everybody once and say who has come up.

        Raises:
            CommandError: the time is over.
        """
        reasons = waiting(self._file.cluster, self._names).reasons
        passed_s = time.monotonic() - self._began
        for name in self._names:
            if name not in reasons and name not in self._up:
                self._up.add(name)
                say(f"  {name} is up after {passed_s:.1f} s")
        if reasons and passed_s > self._timeout_s:
            name, why = next(iter(reasons.items()))
            self._show_log(name)
            raise CommandError(
                f"{name} does not serve after {self._timeout_s:.0f} s: {why}",
                f"its last lines are above; --timeout gives it longer; pdctl logs {name}",
                code=Exit.TIMEOUT,
            )

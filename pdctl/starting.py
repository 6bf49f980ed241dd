"""The words that ``pdctl up`` says while daemons start, and its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from daemons.cluster.load import ClusterFile
from pdctl.errors import CommandError, Exit
from pdctl.readiness import waiting
from pdctl.render import say

QUIET_S = 10.0  # without a word; then it is said who is waited for


class Progress:
    """Who serves already, of those that were started."""

    def __init__(
        self,
        file: ClusterFile,
        names: Sequence[str],
        timeout_s: float,
        show_log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._names = list(names)
        self._clock = clock
        self._began = clock()
        self._said_s = 0.0  # after the beginning
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
        """Ask everybody once and say who has come up, or after a while who has not.

        Raises:
            CommandError: the time is over.
        """
        reasons = waiting(self._file.cluster, self._names).reasons
        passed_s = self._clock() - self._began
        for name in self._names:
            if name not in reasons and name not in self._up:
                self._up.add(name)
                self._said_s = passed_s
                say(f"  {name} is up after {passed_s:.1f} s")
        if reasons and passed_s > self._timeout_s:
            name, why = next(iter(reasons.items()))
            self._show_log(name)
            raise CommandError(
                f"{name} does not serve after {self._timeout_s:.0f} s: {why}",
                f"its last lines are above; --timeout gives it longer; pdctl logs {name}",
                code=Exit.TIMEOUT,
            )
        if reasons and passed_s - self._said_s >= QUIET_S:
            self._said_s = passed_s
            say(f"  {passed_s:.0f} s: waiting for {_grouped(reasons)}")


def _grouped(reasons: Mapping[str, str]) -> str:
    """Return ``p0, d0 (why); lb (why)``, in the order in which they were started."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(those)} ({why})" for why, those in names.items())

"""SIGHUP: the cluster file is read again, and what changed is told.

A file that is bad changes nothing. What a daemon can take over while it serves it does; the rest
waits for a restart and is named, so that nobody believes it is in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import ClusterFile, load, settings_of
from daemons.runtime import systemd
from daemons.runtime.log import logger

Apply = Callable[[ClusterFile], frozenset[str]]


@dataclass(slots=True)
class Reload:
    """One daemon's file, as it was read last; called on SIGHUP."""

    file: ClusterFile
    instance: str
    apply: Apply  # takes over what it can; returns the dotted names of such settings

    def __call__(self) -> None:
        """Read the file again."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={now_us}")
        try:
            self._take_over(load(self.file.path))
        except OperatorError as error:
            logger().error("config.refused", text=error.what, hint=error.hint)
        systemd.notify("READY=1")

    def _take_over(self, new: ClusterFile) -> None:
        changed = frozenset(differences(self._settings(self.file), self._settings(new)))
        live = self.apply(new) & changed
        self.file = new
        logger().info(
            "config.reloaded",
            hash=new.hash,
            in_force=sorted(live),
            at_restart=sorted(changed - live),
        )

    def _settings(self, file: ClusterFile) -> Mapping[str, object]:
        return settings_of(file.cluster, self.instance)[0]


def differences(
    old: Mapping[str, object], new: Mapping[str, object], prefix: str = ""
) -> Iterator[str]:
    """Yield the dotted names of settings that differ."""
    for name in sorted({*old, *new}):
        was, now = old.get(name, {}), new.get(name, {})
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from differences(was, now, f"{prefix}{name}.")
        elif was != now:
            yield f"{prefix}{name}"

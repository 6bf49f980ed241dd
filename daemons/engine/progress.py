"""How far the forward under way is, for those who send the pages of a layer once it is done.

The engine's thread writes it, and the compiled kernels do in the middle of a call; any thread reads
it. What is read may be old, but never says more than is done.
"""

from __future__ import annotations

import ctypes
from collections import deque
from time import monotonic

ENDS_KEPT = 256  # forwards whose end is remembered
BROKEN_KEPT = 256  # forwards that broke; whoever follows one looks many times before the next


class Progress:
    """Layers of numbered forwards whose keys and values are in the pool.

    Attributes:
        layers: how many a whole forward has.
        address: of the count of layers that are done, an int64 that the kernels may raise.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._done = ctypes.c_int64(0)
        self.address = ctypes.addressof(self._done)
        self._step = 0
        self._ended = 0
        self._broken: deque[int] = deque(maxlen=BROKEN_KEPT)
        self._ends: list[tuple[int, float]] = [(0, 0.0)] * ENDS_KEPT

    def begin(self, step: int) -> None:
        """Forward ``step`` begins; numbers only rise."""
        self._done.value = 0
        self._step = step

    def reach(self, layer: int) -> None:
        """The keys and values of a layer are in the pool; layers that come out of turn wait."""
        if self._done.value == layer:
            self._done.value = layer + 1

    def end(self, step: int) -> None:
        """All of a forward is in the pool."""
        self._ends[step % ENDS_KEPT] = step, monotonic()
        self._ended = step

    def broke(self, step: int) -> None:
        """A forward ended badly: what is in its pages is nothing."""
        self._broken.append(step)
        self._ended = step

    def layers_of(self, step: int) -> int:
        """Return how many layers of a forward are in the pool, counted from the first."""
        if step <= self._ended:
            return self.layers
        return min(self._done.value, self.layers) if step == self._step else 0

    def ended_s(self, step: int) -> float | None:
        """Return when a forward was all in the pool (monotonic); None: not yet, or long ago."""
        number, at_s = self._ends[step % ENDS_KEPT]
        return at_s if 0 < step == number else None

    def is_under_way(self, step: int) -> bool:
        """Say whether a forward has begun and not ended."""
        return self._ended < step == self._step

    def is_broken(self, step: int) -> bool:
        """Say whether a forward ended badly."""
        return step in self._broken

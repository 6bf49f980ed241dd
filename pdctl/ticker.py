"""Progress in words on standard error: one line that changes on a terminal, new lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

CELLS = 20
CLEAR = "\r\x1b[K"


class Ticker:
    """Tells how far something is; ``with`` it, so that the line ends."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._fact = ""
        self._open = False

    def __enter__(self) -> Ticker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open:
            print(file=sys.stderr)

    def whole(self, fact: str) -> None:
        """Tell the end where a line has told the way there."""
        if self._open:
            self.tell(fact, share=1.0)

    def tell(self, fact: str, passing: str = "", share: float | None = None) -> None:
        """Tell a fact; what is merely passing (a clock) makes no new line where lines stay."""
        if self._is_terminal:
            drawn = "" if share is None else f"{bar(share)}  "
            print(f"{CLEAR}  {drawn}{fact}{passing}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif fact != self._fact:
            print(f"  {fact}{passing}", file=sys.stderr, flush=True)
        self._fact = fact


def bar(share: float, cells: int = CELLS) -> str:
    """Return a bar for a share of the whole, from 0 to 1."""
    full = max(0, min(cells, round(share * cells)))
    return "█" * full + "░" * (cells - full)

"""The operator's errors: what is wrong, and what to do."""

from __future__ import annotations


class OperatorError(Exception):
    """Something an operator can mend; printed as two lines, what and hint."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

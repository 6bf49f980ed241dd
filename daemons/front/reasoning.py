"""Takes a model's thoughts apart from its answer, piece by piece: ``<think>`` ... ``</think>``.

White space around the thoughts belongs to the tags. Text that may still become a tag is held back,
so a stream adds up to what a whole answer says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from daemons.front.text import beginning_of

OPEN, CLOSE = "<think>", "</think>"


class Place(StrEnum):
    """Where in its answer a model is."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"


@dataclass(slots=True)
class ThinkSplit:
    """Text in; thoughts and answer out."""

    place: Place = Place.BEFORE
    in_pieces: bool = True  # False: the thoughts come as one, when they are complete
    _held: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)  # something of this place is out

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text; return the thoughts and the answer that it settles."""
        self._held += text
        if self.place is Place.BEFORE and not self._opened():
            return "", ""
        thoughts = self._thoughts() if self.place is Place.INSIDE else ""
        return thoughts, self._answer() if self.place is Place.AFTER else ""

    def finish(self) -> tuple[str, str]:
        """Return what is still held: the text has ended."""
        held, self._held = self._held, ""
        if self.place is Place.INSIDE:
            return self._stripped(held.rstrip()), ""
        return "", held if self.place is Place.BEFORE else self._stripped(held)

    def _opened(self) -> bool:
        """Leave BEFORE when it is certain whether thoughts come; say whether it is."""
        text = self._held.lstrip()
        if OPEN.startswith(text[: len(OPEN)]) and len(text) < len(OPEN):
            return False
        if text.startswith(OPEN):
            self.place, self._held = Place.INSIDE, text[len(OPEN) :]
        else:
            self.place, self._begun = Place.AFTER, True  # no thoughts: white space is the answer's
        return True

    def _thoughts(self) -> str:
        thoughts, closed, rest = self._held.partition(CLOSE)
        if closed:
            out = self._stripped(thoughts.rstrip())
            self.place, self._held, self._begun = Place.AFTER, rest, False
            return out
        if not self.in_pieces:
            return ""
        kept = self._held[: len(self._held) - beginning_of(self._held, (CLOSE,))].rstrip()
        self._held = self._held[len(kept) :]
        return self._stripped(kept)

    def _answer(self) -> str:
        out, self._held = self._held, ""
        return self._stripped(out)

    def _stripped(self, text: str) -> str:
        """Return the text without white space at the beginning of its place."""
        out = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(out)
        return out


def split_for(prompt: str, *, in_pieces: bool) -> ThinkSplit:
    """Return the split of an answer to ``prompt``; a template may itself open the thoughts."""
    opened = prompt.rstrip().endswith(OPEN)
    return ThinkSplit(Place.INSIDE if opened else Place.BEFORE, in_pieces)

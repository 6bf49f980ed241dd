"""Draws a waterfall in text: a name, a length, a bar in its place, a note."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from daemons.protocol.ids import room_short
from pdctl.merge import Leg, Span, Waterfall

BAR_CELLS = 32
LEAST_NOTE = 16  # a note is folded to no less
_EIGHTHS = " ▏▎▍▌▋▊▉█"  # a cell filled from the left by 0 to 8 eighths


def bar(begin: float, end: float, cells: int = BAR_CELLS) -> str:
    """Return a bar from ``begin`` to ``end``, both shares of the whole; never less than a sliver.

    A cell can be filled from the left only, so a bar begins at a whole cell.
    """
    first = min(int(begin * cells), cells - 1)
    eighths = max(round((min(end, 1.0) - begin) * cells * 8), 1)
    eighths = min(eighths, (cells - first) * 8)
    return " " * first + "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def waterfall_lines(seen: Waterfall, width: int = 10_000) -> Iterator[tuple[str, str]]:
    """Yield lines of at most ``width`` cells, as far as notes can be folded; and their styles."""
    yield from _folded(heading(seen), "", width)
    names = max((len(span.name) for span in seen.spans), default=0)
    for span in seen.spans:
        for line in _span_lines(span, seen.total_s, names, width):
            yield line, ""
    for words, style in _verdict(seen):
        yield from _folded(words, style, width)
    for remark in seen.remarks:
        yield from _folded(f"note: {remark}", "dim", width)


def _folded(words: str, style: str, width: int) -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(words, width, subsequent_indent="  ", break_on_hyphens=False):
        yield line, style


def heading(seen: Waterfall) -> str:
    """Return the line above the bars."""
    cached = f" ({seen.cached_tokens} cached)" if seen.cached_tokens else ""
    pair = f"{seen.prefill} -> {seen.decode}" if seen.prefill else f"{seen.decode} alone"
    return (
        f"room {room_short(seen.room)} (attempt {seen.attempt})  {pair}"
        f"  prompt {seen.prompt_tokens}{cached}  output {seen.output_tokens}  {seen.outcome}"
    )


def _span_lines(span: Span, total_s: float, names: int, width: int) -> Iterator[str]:
    whole = total_s or 1.0
    drawn = bar(span.begin_s / whole, span.end_s / whole)
    note = "; ".join(filter(None, (span.note, "still there" if span.is_open else "")))
    begin = f" {span.name:<{names}} {span.length_s * 1000:>9.1f} ms  |"
    margin = len(begin) + BAR_CELLS + 1
    first, *more = textwrap.wrap(note, max(width - margin, LEAST_NOTE)) or [""]
    yield f"{begin}{drawn:<{BAR_CELLS}} {first}".rstrip()
    for part in more:
        yield f"{'':<{len(begin) - 1}}|{'':<{BAR_CELLS}} {part}"


def _verdict(seen: Waterfall) -> Iterator[tuple[str, str]]:
    if seen.first_cause is not None:
        yield from _failure_lines(seen)
        return
    words = []
    if seen.ttft_s is not None:
        words.append(f"TTFT {seen.ttft_s * 1000:.0f} ms")
        if (longest := seen.longest) is not None and seen.ttft_s > 0:
            share = min(longest.length_s / seen.ttft_s, 1)
            words.append(f"the longest part is {longest.name} ({share:.0%})")
    if seen.outcome == "open":
        words.append("not over yet")
    if words:
        yield "; ".join(words), "bold"


def _failure_lines(seen: Waterfall) -> Iterator[tuple[str, str]]:
    failure = seen.first_cause
    assert failure is not None
    at_s = next(leg.at_s for leg in seen.legs if leg.instance == seen.first_leg)
    peer = f", peer {failure.peer}" if failure.peer else ""
    yield (
        f"failed in {failure.stage} of {seen.first_leg} after {at_s * 1000:.0f} ms{peer}",
        "bold red",
    )
    detail = f": {failure.detail}" if failure.detail else ""
    yield f"first cause: {failure.cause.value}{detail}", "red"
    for leg in seen.legs:
        yield f" {leg_words(leg)}", ""


def leg_words(leg: Leg) -> str:
    """Return how one leg ended."""
    if leg.is_open:
        return f"{leg.instance}: still in {leg.stage}"
    why = str(leg.failure) if leg.failure else leg.because
    return f"{leg.instance}: left {leg.stage} after {leg.at_s * 1000:.0f} ms, {why}"

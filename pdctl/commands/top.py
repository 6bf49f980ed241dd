"""``pdctl top``: the cluster at work, drawn again and again until Ctrl-C.

On a terminal it has a screen of its own and leaves the old one as it was. Elsewhere, and in the
forms for programs, it prints one look after another.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import Exit
from pdctl.render import Output, View, milliseconds, rate, show

if TYPE_CHECKING:
    from pdctl.board import Board, Line
    from pdctl.target import Target

SCHEMA_VERSION = 1
COLUMNS = ("NAME", "STATE", "ROOMS BY STAGE", "KV", "QUEUE", "TTFT p50/p99", "ITL p50/p99",
           "TOKENS", "WIRE")  # fmt: skip
STAGES = ("ROOMS BY STAGE",)
SPARE = ("STATE", "TOKENS", "QUEUE", "WIRE")
GAUGE_CELLS = 10
SCREEN, BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen without a cursor
HOME, REST = "\x1b[H", "\x1b[J"  # to the upper left; erase what is below
STYLES = {"draining": "yellow", "silent": "bold red", "lost": "bold red", "absent": "bold red"}


def top(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    every: Annotated[
        float, typer.Option("--every", "--watch", help="Seconds between two looks.", min=0.1)
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="Stop after so many looks.", min=1)
    ] = None,
) -> int:
    """Watch the cluster work: rooms by stage, KV pages, queues, latencies, the wire.

    Example: pdctl top --every 2
    """
    from pdctl import target
    from pdctl.board import board_of
    from pdctl.survey import look

    found = target.find(config)
    before: Board | None = None
    has_screen = output in (Output.TABLE, Output.WIDE) and sys.stdout.isatty() and count != 1
    looks = 0
    try:
        if has_screen:
            sys.stdout.write(SCREEN)
        while True:
            before = board_of(look(found.cluster), time.time(), before, found.file.hash)
            if has_screen:
                sys.stdout.write(HOME)
            show(_view(found, before), output, one_line=count != 1, over=has_screen)
            if has_screen:
                sys.stdout.write(REST)
            sys.stdout.flush()
            looks += 1
            if looks == count:
                return Exit.OK
            time.sleep(every)
    finally:
        if has_screen:
            sys.stdout.write(BACK)
            sys.stdout.flush()


def gauge(share: float | None, cells: int = GAUGE_CELLS) -> str:
    """Return a share as a bar with its number: ``███░░░░░░░  31%``."""
    if share is None:
        return "-"
    full = min(cells, round(share * cells))
    return f"{'█' * full}{'░' * (cells - full)} {share:4.0%}"


def _view(found: Target, board: Board) -> View:
    from pdctl.health import STYLES as HEALTH

    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "top",
        "cluster": found.cluster.name,
        "at_s": board.at_s,
        "health": board.health.level.value,
        "rooms": board.rooms,
        "tokens_per_s": board.tokens_per_s,
        "daemons": [_facts(line) for line in board.lines],
    }
    tokens = "-" if board.tokens_per_s is None else f"{board.tokens_per_s:.0f}"
    heading = (
        f"{found.cluster.name}  {time.strftime('%H:%M:%S', time.localtime(board.at_s))}"
        f"  {board.rooms} rooms  {tokens} tokens/s"
    )
    above = [(board.health.line, HEALTH[board.health.level]), (heading, "bold")]
    rows = [_row(line) for line in board.lines]
    names = [line.name for line in board.lines]
    return View(document, COLUMNS, rows, names, (), SPARE, STAGES, above=above, styles=STYLES)


def _facts(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "role": line.role,
        "state": line.state,
        "rooms_by_stage": line.stages,
        "kv_share": line.kv_share,
        "queue": line.queue,
        "ttft_p50_s": line.ttft_s[0],
        "ttft_p99_s": line.ttft_s[1],
        "itl_p50_s": line.itl_s[0],
        "itl_p99_s": line.itl_s[1],
        "tokens_per_s": line.tokens_per_s,
        "wire_bytes_per_s": line.wire_bytes_per_s,
    }


def _row(line: Line) -> list[str]:
    busy = [f"{stage} {count}" for stage, count in (line.stages or {}).items() if count]
    return [
        line.name,
        line.state,
        "-" if line.stages is None else "  ".join(busy) or "idle",
        gauge(line.kv_share),
        "-" if line.queue is None else str(line.queue),
        _pair(line.ttft_s),
        _pair(line.itl_s),
        "-" if line.tokens_per_s is None else f"{line.tokens_per_s:.0f}/s",
        rate(line.wire_bytes_per_s),
    ]


def _pair(seconds: tuple[float | None, float | None]) -> str:
    if seconds == (None, None):
        return "-"
    half, most = (milliseconds(value).removesuffix(" ms") for value in seconds)
    return f"{half}/{most} ms"

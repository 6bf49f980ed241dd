"""What pdctl prints: tables for people, documents for programs.

Standard output is data, standard error is words. Color only on a terminal; ``NO_COLOR`` and
``CLICOLOR_FORCE`` are obeyed. rich and yaml are imported when something is drawn.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from pdctl.errors import CommandError, Exit
from pdctl.widths import GAP, cut, kept, natural

if TYPE_CHECKING:
    from rich.console import Console

ERASE = "\x1b[K"  # to the end of the line
WIDE = 10_000  # columns of what is no terminal: never cut a value


class Output(StrEnum):
    """Forms of ``-o``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class View:
    """One screen in all its forms.

    ``wide_only`` columns are left out of the plain table, those of ``spare`` where the terminal is
    narrow, the first ones first; ``folded`` ones go on in the next line, others are cut. Of the
    wide table nothing is cut: where folding is not enough, the terminal wraps its lines.
    """

    document: dict[str, Any]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    names: Sequence[str] = ()
    wide_only: Sequence[str] = ()
    spare: Sequence[str] = ()
    folded: Sequence[str] = ()
    above: Sequence[tuple[str, str]] = ()  # (text, style) of the lines over the table
    styles: dict[str, str] = field(default_factory=dict)  # word in a cell -> style


def console(stream: TextIO | None = None) -> Console:
    """Return a rich console that obeys the usual environment variables."""
    from rich.console import Console

    out = stream or sys.stdout
    forced = True if os.environ.get("CLICOLOR_FORCE", "0") != "0" else None
    width = None if out.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(
        file=out, force_terminal=forced, width=width, highlight=False, markup=False, emoji=False
    )


def say(words: str) -> None:
    """Print words to standard error."""
    print(words, file=sys.stderr, flush=True)


def show(view: View, output: Output, *, one_line: bool = False, over: bool = False) -> None:
    """Print a view.

    ``one_line`` makes a JSON document one line (of a stream of them); ``over`` draws over an older
    screen, of whose lines nothing stays.
    """
    if output is Output.JSON:
        print(json.dumps(view.document, indent=None if one_line else 2), flush=True)
    elif output is Output.YAML:
        import yaml

        print(yaml.safe_dump(view.document, sort_keys=False, explicit_start=one_line), end="")
    elif output is Output.NAME:
        for name in view.names:
            print(name)
    else:
        _draw(view, wide=output is Output.WIDE, line_end=f"{ERASE}\n" if over else "\n")


def repeat(look: Callable[[], View], output: Output, every_s: float) -> None:
    """Show what ``look`` returns until interrupted, on a terminal in the same place."""
    clear = output in (Output.TABLE, Output.WIDE) and sys.stdout.isatty()
    while True:
        view = look()
        if clear:
            console().clear()
        show(view, output, one_line=True)
        sys.stdout.flush()
        time.sleep(every_s)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal before a change.

    Raises:
        CommandError: the answer is no, or there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            "there is no terminal to ask on", "--yes does it unasked", code=Exit.USAGE
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed", "--yes does it unasked", code=Exit.FAILED)


def _draw(view: View, *, wide: bool, line_end: str) -> None:
    from rich.text import Text

    out = console()
    with out.capture() as drawn:  # rich by itself would end the process on a broken pipe
        for words, style in view.above:
            out.print(Text(words, style=style), soft_wrap=True)
        if view.columns:
            table = _table(view, out.width, wide=wide)
            if wide:
                out.width = WIDE  # the columns have their widths already
            out.print(table)
    sys.stdout.write(drawn.get().replace("\n", line_end))
    sys.stdout.flush()


def _table(view: View, width: int, *, wide: bool) -> Any:
    from rich.table import Table
    from rich.text import Text

    wants = natural(view.columns, view.rows)
    if wide:
        stay = list(range(len(view.columns)))
    else:
        hidden = {view.columns.index(name) for name in view.wide_only}
        shown = [at for at in range(len(view.columns)) if at not in hidden]
        names, sizes = [view.columns[at] for at in shown], [wants[at] for at in shown]
        stay = [shown[at] for at in kept(names, sizes, view.spare, width)]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    sizes = cut([wants[at] for at in stay], width)
    if wide and any(
        size < wants[at] and view.columns[at] not in view.folded
        for at, size in zip(stay, sizes, strict=True)
    ):
        sizes = [wants[at] for at in stay]
    for at, size in zip(stay, sizes, strict=True):
        is_folded = view.columns[at] in view.folded
        table.add_column(
            view.columns[at],
            width=size,
            no_wrap=not is_folded,
            overflow="fold" if is_folded else "ellipsis",
        )
    for row in view.rows:
        table.add_row(*(Text(row[at], style=view.styles.get(row[at], "")) for at in stay))
    return table


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units at most: ``42s``, ``3m10s``, ``2h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60}m" if whole < 36000 else f"{whole // 3600}h"
    return f"{whole // 86400}d"


def milliseconds(seconds: float | None) -> str:
    """Return a latency for a table, ``-`` when there is none."""
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def amount(size_bytes: float) -> str:
    """Return a size with a binary unit: ``402 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if size_bytes >= 10 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def rate(bytes_per_s: float | None) -> str:
    """Return a speed with a decimal unit, as networks are sold: ``3.1 GB/s``."""
    if not bytes_per_s:
        return "-"
    for unit in ("B", "kB", "MB"):
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.0f} {unit}/s"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.1f} GB/s"

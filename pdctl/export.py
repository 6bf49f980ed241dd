"""A waterfall for other tools: the trace events that Perfetto and chrome://tracing open, or a page.

Pure: text out. The page is one file that loads nothing; all that comes from a room is escaped.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator

from daemons.protocol.ids import room_hex, room_short
from pdctl.draw import heading, leg_words
from pdctl.forms import Export
from pdctl.merge import Span, Waterfall

MICROSECONDS = 1e6  # the unit of trace events
COLORS = {"lb": "#8a8f98", "p": "#4f7fd6", "kv": "#d68a3c", "d": "#4fa36b"}


def exported(seen: Waterfall, form: Export) -> str:
    """Return the waterfall in a form."""
    return perfetto(seen) if form is Export.PERFETTO else page(seen)


def perfetto(seen: Waterfall) -> str:
    """Return trace events: a process per daemon, a thread per stage, times since the beginning."""
    instances = list(dict.fromkeys(span.instance for span in seen.spans))
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": n, "args": {"name": instance}}
        for n, instance in enumerate(instances, 1)
    ]
    for tid, span in enumerate(seen.spans, 1):
        pid = instances.index(span.instance) + 1
        named = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid}
        events.append({**named, "args": {"name": span.name}})
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": "room",
                "pid": pid,
                "tid": tid,
                "ts": round(span.begin_s * MICROSECONDS, 1),
                "dur": round(span.length_s * MICROSECONDS, 1),
                "args": {"note": span.note, "open": span.is_open},
            }
        )
    about = {"room": room_hex(seen.room), "attempt": seen.attempt, "outcome": seen.outcome}
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events})


def page(seen: Waterfall) -> str:
    """Return one HTML file."""
    body = "\n".join(_page_lines(seen))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>room {room_short(seen.room)}</title>\n<style>{STYLE}</style>\n{body}\n</html>\n"
    )


STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:70em}"
    "table{border-collapse:collapse;width:100%}td{padding:2px 8px;white-space:nowrap}"
    "td.n{text-align:right}td.b{width:60%}i{display:block;height:14px;border-radius:2px;"
    "min-width:2px}.failed{color:#b3261e}"
)


def _page_lines(seen: Waterfall) -> Iterator[str]:
    yield f"<h1>{html.escape(heading(seen))}</h1>\n<table>"
    for span in seen.spans:
        yield _row(span, seen.total_s or 1.0)
    yield "</table>"
    if seen.first_cause is not None:
        words = f"{seen.first_leg}: {seen.first_cause}"
        yield f'<p class="failed">first cause: {html.escape(words)}</p><ul>'
        yield from (f"<li>{html.escape(leg_words(leg))}</li>" for leg in seen.legs)
        yield "</ul>"
    elif seen.ttft_s is not None:
        yield f"<p>TTFT {seen.ttft_s * 1000:.0f} ms</p>"
    yield from (f"<p>note: {html.escape(remark)}</p>" for remark in seen.remarks)


def _row(span: Span, total_s: float) -> str:
    left = span.begin_s / total_s * 100
    width = max(span.length_s / total_s * 100, 0.0)
    color = COLORS.get(span.name.partition(".")[0], "#888")
    bar = f'<i style="margin-left:{left:.2f}%;width:{width:.2f}%;background:{color}"></i>'
    return (
        f"<tr><td>{html.escape(span.name)}</td><td>{html.escape(span.instance)}</td>"
        f'<td class="n">{span.length_s * 1000:.1f} ms</td><td class="b">{bar}</td>'
        f"<td>{html.escape(span.note)}</td></tr>"
    )

"""Logs: one event a line, JSON for machines and columns for people.

Events are dotted ``noun.verb``; facts are keys with units; there is no prose.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO, TextIO, cast

import msgspec
import structlog
from aiohttp.http_exceptions import BadHttpMessage
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

HEADS = ("timestamp", "level", "instance", "role", "event")

Logger = FilteringBoundLogger


def configure(
    instance: str, role: str, *, level: str = "info", stream: TextIO | None = None
) -> None:
    """Set up logging of this process; call it once, before the first event.

    ``stream`` is standard output unless given; JSON is chosen when it is no terminal. Records of
    libraries that use :mod:`logging` take the same way.
    """
    out = sys.stdout if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _named(instance, role),
    ]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    sink = logging.StreamHandler(out)
    sink.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _foreign],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(terminal=out.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [sink]
    root.setLevel(threshold)
    global _many
    binary: BinaryIO | None = getattr(out, "buffer", None)
    plain = not out.isatty() and threshold <= logging.INFO
    _many = Many(binary, instance, role) if plain and binary is not None else None
    server = logging.getLogger("aiohttp.server")
    server.filters[:] = [_is_worth_a_line]


def logger(**facts: Any) -> Logger:
    """Return a logger that adds ``facts`` to each of its events."""
    return cast(Logger, structlog.get_logger(**facts))


@dataclass(slots=True)
class Many:
    """Writes INFO events of which there are thousands a second: a tenth of what the others cost.

    The lines are those of the others; all of one turn of the event loop go out in one write.
    """

    out: BinaryIO
    instance: str
    role: str
    pending: list[bytes] = field(default_factory=list)

    def tell(self, event: str, facts: Mapping[str, Any]) -> None:
        """Write one event."""
        line = {
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "level": "info",
            "instance": self.instance,
            "role": self.role,
            "event": event,
            **facts,
        }
        self.pending.append(msgspec.json.encode(line))
        if len(self.pending) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:  # no loop runs here
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        lines, self.pending = self.pending, []
        if lines:
            self.out.write(b"\n".join(lines) + b"\n")
            self.out.flush()


_many: Many | None = None


def tell(log: Logger, event: str, facts: Mapping[str, Any]) -> None:
    """Write an INFO event of which there are many; ``facts`` must be what JSON has."""
    if _many is not None:
        _many.tell(event, facts)
    else:
        log.info(event, **facts)


def _named(instance: str, role: str) -> Processor:
    def add_names(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("instance", instance)
        event.setdefault("role", role)
        return event

    return add_names


def _foreign(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Give a library's prose a key of its own, so that events stay ``noun.verb``."""
    record = event.get("_record")
    event["text"] = event["event"]
    event["event"] = "library.said"
    event["library"] = record.name if record is not None else ""
    return event


def _rendering(*, terminal: bool) -> list[Processor]:
    if terminal:
        return [structlog.dev.ConsoleRenderer()]
    to_json = cast(Processor, structlog.processors.JSONRenderer(default=str))
    return [structlog.processors.format_exc_info, _heads_first, to_json]


def _heads_first(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Begin each line with the same keys, for whoever reads it raw."""
    return {**{name: event[name] for name in HEADS if name in event}, **event}


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Drop the tracebacks of bytes that are not HTTP/1 (an HTTP/2 probe, a port scan)."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, BadHttpMessage)

"""The head of a request and where its body ends: read by llhttp, then narrowed.

- What two readers could understand differently is refused: both lengths, any transfer coding but
  ``chunked``, a coding in HTTP/1.0, no or two hosts, bare line feeds, folded lines.
- Names are in small letters; a field that comes again is joined by a comma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import httptools

HEAD_BYTES_LIMIT = 32 << 10
LINE_BYTES_LIMIT = 8190  # of the request line and of each field
FIELDS_LIMIT = 100
HEAD_END = b"\r\n\r\n"
_ONCE = frozenset({"host", "content-length", "transfer-encoding", "authorization", "content-type"})


class BadHead(Exception):
    """The request cannot be read; its connection ends after the answer ``status``."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(slots=True)
class Head:
    """What stands before a body."""

    method: str
    path: str  # without the query
    headers: dict[str, str]
    keep_alive: bool
    is_http10: bool
    length: int | None  # bytes of the body; None: it comes in chunks

    @property
    def expects(self) -> bool:
        """Whether the client waits for ``100 Continue``."""
        return self.headers.get("expect", "").lower() == "100-continue" and not self.is_http10


@lru_cache(512)
def small_name(name: bytes) -> str:
    """Return the name of a field in small letters."""
    return name.decode("latin-1").lower()


def request_line(raw: bytes | bytearray) -> tuple[str, str]:
    """Return method and path of the first line; a path that is no path is "" ."""
    return _method_and_path(bytes(raw[: raw.find(b"\r\n")]))


@lru_cache(64)  # clients ask for few things
def _method_and_path(line: bytes) -> tuple[str, str]:
    method, _, rest = line.partition(b" ")
    target = rest.partition(b" ")[0].partition(b"?")[0]
    if not target.startswith(b"/"):  # http://host/path names this server as well
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    return method.decode("latin-1"), target.decode("latin-1")


def read_head(raw: bytes, fields: Fields | None = None) -> tuple[Head, httptools.HttpRequestParser]:
    """Return the head that ``raw`` is, whole and with its empty line, and the parser behind it.

    Raises:
        BadHead: 400, or 431 beyond a limit.
    """
    fields = fields or Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        fields.refuse_chunks()
    except httptools.HttpParserCallbackError as error:
        raise _cause_of(error) from error
    except httptools.HttpParserError as error:
        raise BadHead(400, f"request: {error}") from error
    fields.is_read = True
    method, path = request_line(raw)
    version = parser.get_http_version()
    if version not in ("1.0", "1.1") or raw.count(b" ", 0, raw.find(b"\r\n")) != 2:
        raise BadHead(400, "request: its first line is no method, target and HTTP/1.x")
    is_http10 = version == "1.0"
    return (
        Head(
            method,
            path,
            fields.headers,
            keeps(version, fields.headers.get("connection", "")),
            is_http10,
            fields.length(is_http10=is_http10),
        ),
        parser,
    )


def field_lines(headers: Mapping[str, str]) -> bytes:
    """Return fields as they stand in a head."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return lines.encode("latin-1", "replace")


def keeps(version: str, wish: str) -> bool:
    """Say whether a connection outlives a message, by its version and its wish."""
    if not wish:
        return version == "1.1"
    wishes = [word.strip() for word in wish.lower().split(",")]
    return "close" not in wishes and (version == "1.1" or "keep-alive" in wishes)


@dataclass(slots=True)
class Fields:
    """Collects a message for a parser; its names are those that httptools calls."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    limit: int = 0  # bytes of a body in chunks
    is_read: bool = False  # the head: fields after the last chunk are dropped
    begun: int = 0  # messages
    ended: int = 0

    def on_message_begin(self) -> None:
        """Count."""
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; raises BadHead."""
        if self.is_read:
            return
        key, text = small_name(name), value.decode("latin-1")
        if len(name) + len(value) > LINE_BYTES_LIMIT or len(self.headers) >= FIELDS_LIMIT:
            raise BadHead(431, "request: the head is too large")
        before = self.headers.get(key)
        if before is not None and key in _ONCE:
            raise BadHead(400, f"request: {key} stands there twice")
        self.headers[key] = text if before is None else f"{before}, {text}"

    def on_body(self, part: bytes) -> None:
        """Take a part of the body; raises BadHead."""
        if self.ended:
            return
        if len(self.body) + len(part) > self.limit:
            raise BadHead(413, f"body: more than {self.limit} bytes")
        self.body += part

    def on_message_complete(self) -> None:
        """Count."""
        self.ended += 1

    def length(self, *, is_http10: bool) -> int | None:
        """Return the bytes of the body, None for chunks; raises BadHead."""
        if not is_http10 and not self.headers.get("host"):
            raise BadHead(400, "request: no host")
        coding = self.headers.get("transfer-encoding")
        if coding is None:
            return int(self.headers.get("content-length", "0"))
        if is_http10 or coding.strip().lower() != "chunked":
            raise BadHead(400, f"request: transfer coding {coding[:40]!r}")
        return None

    def refuse_chunks(self) -> None:
        """Refuse a body in chunks with a wish for another protocol."""
        if "transfer-encoding" in self.headers:
            raise BadHead(400, "request: another protocol, and a body in chunks")


def _cause_of(error: httptools.HttpParserCallbackError) -> Exception:
    """Return what a callback raised."""
    return error.__context__ if isinstance(error.__context__, BadHead) else error

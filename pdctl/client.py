"""HTTP to the daemons: plain, with a deadline on every call, several of them at once.

The standard library does, since pdctl makes a dozen small calls and must start fast.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

CALL_S = 3.0
BODY_BYTES_LIMIT = 64 << 20
TOGETHER = 16  # calls in flight

T = TypeVar("T")


class Unreachable(Exception):
    """No answer, no HTTP, or an answer that is not what was asked for; fit for people."""


class Refused(Exception):
    """The daemon answered with an error of its own; the text is the daemon's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    took_s: float

    def json(self) -> Any:
        """Return the body as JSON; raises Unreachable when it is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Unreachable(f"no JSON: {self.body[:80]!r}") from error


def base_url(host: str, port: int) -> str:
    """Return ``http://host:port``, with brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def call(
    method: str,
    url: str,
    body: object | None = None,
    *,
    token: str | None = None,
    timeout_s: float = CALL_S,
) -> Answer:
    """Make one HTTP call, with the daemon's token if there is one; any status is an answer.

    Raises:
        Unreachable: no answer in time.
    """
    began = time.monotonic()
    with _open(method, url, body, token, timeout_s) as response:
        try:
            raw = response.read(BODY_BYTES_LIMIT)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{url}: {_words(error)}") from error
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, raw, time.monotonic() - began)


def get_json(url: str, *, token: str | None = None, timeout_s: float = CALL_S) -> Any:
    """Return the JSON of a GET that must be 200.

    Raises:
        Unreachable: no answer, or no JSON.
        Refused: another status.
    """
    return _checked(call("GET", url, token=token, timeout_s=timeout_s))


def post_json(
    url: str, body: object, *, token: str | None = None, timeout_s: float = CALL_S
) -> Any:
    """POST JSON and return the JSON of an answer that must be 200; raises like get_json."""
    return _checked(call("POST", url, body, token=token, timeout_s=timeout_s))


def stream(
    url: str, body: object, *, idle_s: float
) -> Iterator[tuple[Mapping[str, str], dict[str, Any]]]:
    """POST and yield (headers, event) for each server-sent event, until ``[DONE]``.

    Raises:
        Unreachable: nothing for ``idle_s``, or the stream broke before its end.
        Refused: not 200, or an error event in the stream.
    """
    with _open("POST", url, body, None, idle_s) as response:
        headers = {name.lower(): value for name, value in response.getheaders()}
        if response.status != 200:
            raise Refused(response.status, message_of(response.read(BODY_BYTES_LIMIT)))
        try:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    response.read()  # to the end: closing before it would look like a hang-up
                    return
                event = json.loads(data)
                if isinstance(event, dict) and event.get("error"):
                    raise Refused(int(event["error"].get("code") or 500), message_of(data))
                yield headers, event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(f"{url}: the answer broke off: {_words(error)}") from error
    raise Unreachable(f"{url}: the answer broke off before its end")


def together(calls: Mapping[str, Callable[[], T]]) -> dict[str, T | Unreachable | Refused]:
    """Make calls at once and return their results, or the trouble that each met."""

    def attempt(one: Callable[[], T]) -> T | Unreachable | Refused:
        try:
            return one()
        except (Unreachable, Refused) as trouble:
            return trouble

    if not calls:
        return {}
    with ThreadPoolExecutor(min(len(calls), TOGETHER)) as pool:
        return dict(zip(calls, pool.map(attempt, calls.values()), strict=True))


def message_of(raw: bytes) -> str:
    """Return the message of an error body, or its beginning when it has another shape."""
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")


def _checked(answer: Answer) -> Any:
    if answer.status != 200:
        raise Refused(answer.status, message_of(answer.body))
    return answer.json()


@contextmanager
def _open(
    method: str, url: str, body: object | None, token: str | None, timeout_s: float
) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    raw = None if body is None else json.dumps(body).encode()
    headers = {} if raw is None else {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, raw, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{url}: {_words(error)}") from error
        with response:
            yield response
    finally:
        connection.close()


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

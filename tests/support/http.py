"""One HTTP call of a test, whatever comes of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def asked(
    method: str,
    url: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    within_s: float = 30.0,
) -> tuple[int, bytes]:
    """Return status and body of a call with a JSON body."""
    raw = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} if raw is not None else {}
    request = urllib.request.Request(url, raw, {**sent, **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=within_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()

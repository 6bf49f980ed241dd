"""What goes into a support bundle, and what never does.

- The cluster file goes in as it was understood, without comments; a value whose name speaks of a
  key, token, secret or password is left out, but for the name of a file.
- Every text is searched for the secrets that this host knows (the cluster's key and all that is
  derived from it, in every usual spelling) before it goes in. One that is found is left out.
- Prompts and answers are in no log and no story, so they are in no bundle.
"""

from __future__ import annotations

import base64
import io
import re
import tarfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

from daemons.cluster.key import ClusterKey
from daemons.protocol.topology import Role

GONE = "[left out]"
SPEAKS_OF_SECRETS = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
HARMLESS = re.compile(r"(_file|_tokens|tokens_\w+|tokens)$")  # numbers, names of files
SHOWN_KEY = re.compile(
    r"(?i)(bearer\s+|(?:api[_-]?key|password|secret)['\"]?\s*[:=]\s*['\"]?)(\S{8,})"
)


def spellings(key: ClusterKey | None, more: Iterable[str] = ()) -> list[str]:
    """Return every text that would give a secret away, the longest first."""
    raw = [text.encode() for text in more if text]
    texts = {text for text in more if text}
    if key is not None:
        tokens = {key.token(role) for role in Role}
        raw += [key.secret, key.plane]
        texts |= tokens | {key.secret.decode(errors="replace")}
    for secret in raw:
        texts |= {secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]}
        texts.add(base64.urlsafe_b64encode(secret).decode().rstrip("="))
    return sorted((text for text in texts if len(text) >= 8), key=len, reverse=True)


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """Return a text without the secrets, and without what looks like one that is shown."""
    for secret in secrets:
        text = text.replace(secret, GONE)
    return SHOWN_KEY.sub(lambda match: f"{match[1]}{GONE}", text)


def without_secrets(document: Any) -> Any:
    """Return a parsed file without the values whose names speak of secrets."""
    if isinstance(document, Mapping):
        return {
            name: GONE if _is_secret(str(name), value) else without_secrets(value)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [without_secrets(value) for value in document]
    return document


def _is_secret(name: str, value: object) -> bool:
    if isinstance(value, bool | int | float | Mapping) or HARMLESS.search(name):
        return False
    return SPEAKS_OF_SECRETS.search(name) is not None


def packed(folder: str, texts: Mapping[str, str], secrets: Iterable[str]) -> bytes:
    """Return a ``.tar.gz`` of texts under ``folder``, each of them scrubbed."""
    known = list(secrets)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in texts.items():
            raw = scrubbed(text, known).encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(raw), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(raw))
    return out.getvalue()

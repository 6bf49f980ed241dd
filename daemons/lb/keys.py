"""Who may send orders: keys of clients, of which only hashes are kept.

- A line of the file is ``NAME:HASH``; the hash is SHA-256 of the key in hexadecimal. Keys must be
  long and random, as ``openssl rand -hex 32`` makes them: then a plain hash tells nothing.
- Every hash is compared, each in constant time, so that time tells nothing either.
- A client's key never goes on to a worker.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from daemons.cluster.errors import OperatorError

SCHEME = "bearer "
HINT = "a line is NAME:HASH, and HASH is what 'printf %s KEY | sha256sum' prints"


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """Hashes by client."""

    hashes: tuple[tuple[str, bytes], ...] = field(repr=False)

    def client_of(self, authorization: str) -> str | None:
        """Return whose key a header shows, None when it shows none of them."""
        if not authorization.lower().startswith(SCHEME):
            return None
        key = authorization[len(SCHEME) :].strip().encode("latin-1", "replace")
        given, found = hashlib.sha256(key).digest(), None
        for client, known in self.hashes:
            if hmac.compare_digest(given, known):
                found = client
        return found


def load_api_keys(path: Path) -> ApiKeys:
    """Read a file of keys.

    Raises:
        OperatorError: it cannot be read, has no key, or a line is none.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"cannot read the API keys in {path}: {error}", HINT) from error
    hashes: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, digest = (part.strip() for part in line.partition(":"))
        try:
            known = bytes.fromhex(digest)
        except ValueError:
            known = b""
        if not name or len(known) != hashlib.sha256().digest_size or name in hashes:
            raise OperatorError(f"{path}, line {number}: no key of a client of its own", HINT)
        hashes[name] = known
    if not hashes:
        raise OperatorError(f"{path} has no API key", HINT)
    return ApiKeys(tuple(hashes.items()))

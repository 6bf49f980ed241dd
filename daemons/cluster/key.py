"""The cluster's key: where it lies, who may read it, and what is derived from it.

- It is at least 32 bytes of text in a file of its own, which nobody but its owner may read, or a
  credential that systemd hands over; the credential wins.
- Nothing uses the key itself. Each use has a secret of its own, derived under its own label, so
  that who learns a token learns neither another one nor the key.
- Neither shows in a log, a ``repr`` or a document: only the first digits of a hash do.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.model import Cluster
from daemons.protocol.topology import Role

CREDENTIAL = "pd-key"  # LoadCredential= of the units
LEAST_BYTES = 32
MOST_BYTES = 4096
MAKE_ONE = "pdctl keygen makes one"
FACES = {
    Role.BOOTSTRAP: "http phone book",
    Role.PREFILL: "http worker",
    Role.DECODE: "http worker",
    Role.LB: "http balancer",
}


@dataclass(frozen=True, slots=True, repr=False)
class ClusterKey:
    """What all daemons of a cluster share, and nobody else knows."""

    secret: bytes
    origin: str  # where it was found, for people

    def __repr__(self) -> str:
        return f"<key {self.short_hash} of {self.origin}>"

    @property
    def short_hash(self) -> str:
        """Eight hexadecimal digits to compare hosts by; they tell nothing of the key."""
        return self._derived("compare")[:4].hex()

    @property
    def plane(self) -> bytes:
        """Secret of the seals on the message plane, 32 bytes."""
        return self._derived("message plane")

    def token(self, role: Role) -> str:
        """Return the bearer token that a daemon of this role asks for."""
        return self._derived(FACES[role]).hex()

    def _derived(self, label: str) -> bytes:
        # One block of HKDF's expansion (RFC 5869), with the key as it is for the secret.
        return hmac.digest(self.secret, f"pd/1 {label}\x01".encode(), "sha256")


def load_key(cluster: Cluster, *, environ: Mapping[str, str] = os.environ) -> ClusterKey | None:
    """Return the key of a cluster, None when it has none.

    Raises:
        OperatorError: the file cannot be read, others may read it, or it is too short.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY", "")  # systemd's, see systemd.exec(5)
    credential = Path(folder, CREDENTIAL)
    if folder and _is_there(credential):
        # Its mode says nothing: systemd lets our user in by an access list.
        return _read(credential, f"credential {CREDENTIAL}", check_mode=False)
    if cluster.key_file:
        return _read(Path(cluster.key_file), cluster.key_file, check_mode=True)
    return None


def make_key(path: Path) -> ClusterKey:
    """Write a new key, readable by its owner only.

    Raises:
        OperatorError: there is a file already, or it cannot be written.
    """
    text = secrets.token_hex(LEAST_BYTES)
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise OperatorError(
            f"{path} exists, and another key would lock its cluster out",
            "choose another path, or remove it first",
        ) from None
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}") from error
    return ClusterKey(text.encode(), str(path))


def _is_there(credential: Path) -> bool:
    try:
        return credential.exists()
    except OSError:  # a folder that is closed to us has one: reading it tells what is wrong
        return True


def _read(path: Path, origin: str, *, check_mode: bool) -> ClusterKey:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise OperatorError(f"no key in {path}", f"{MAKE_ONE}; every host needs the same") from None
    except OSError as error:
        raise OperatorError(
            f"cannot read the key {path}: {error.strerror}", "run as its owner, or as root"
        ) from error
    if check_mode and mode & 0o077:
        raise OperatorError(
            f"others may read the key {path} (mode {mode & 0o777:o})", f"chmod 600 {path}"
        )
    secret = raw.strip()
    if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise OperatorError(
            f"the key {path} has {len(secret)} bytes, {LEAST_BYTES} to {MOST_BYTES} are wanted",
            MAKE_ONE,
        )
    return ClusterKey(secret, origin)

"""What is on a host, compared with what it should have.

The record of an installation keeps a hash of every file that we wrote. A file whose content is
neither what we wrote nor what we would write was edited by somebody: it is never overwritten
silently.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from daemons.cluster.errors import OperatorError
from pdctl.installation.wanted import Wanted

RECORD = Path("/var/lib/pd/installed.json")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation wrote."""

    schema_version: int = 1
    version: str  # of pd
    host: str
    prefix: str
    user: str
    files: dict[str, str] = {}  # path on the host -> hash of what we wrote


class Deed(StrEnum):
    """What is to be done with a file."""

    KEEP = "keep"  # it is as it should be
    CREATE = "create"
    UPDATE = "update"  # as we wrote it, and now it should be something else
    CONFLICT = "conflict"  # edited since, or never ours
    REMOVE = "remove"  # ours, and not wanted any more
    LEAVE = "leave"  # was ours and not wanted any more, but edited since


@dataclass(frozen=True, slots=True)
class Change:
    """One file and its deed; ``was`` is what is there, None where nothing is."""

    deed: Deed
    file: Wanted
    was: str | None = None


def at(root: Path, path: Path) -> Path:
    """Return where a path of the host lies under ``root``."""
    return root / path.relative_to("/")


def changes(files: Iterable[Wanted], record: Record | None, root: Path) -> list[Change]:
    """Return what is to be done, the wanted files first, then those to be removed.

    Raises:
        OperatorError: a file that is there cannot be read.
    """
    written = dict(record.files) if record else {}
    found = []
    for file in files:
        was, now = content(at(root, file.path)), _text(file)
        ours = was is not None and digest(was) == written.pop(str(file.path), None)
        found.append(Change(_deed(was, now, ours=ours), file, was))
    for path, hash_written in written.items():
        was = content(at(root, Path(path)))
        if was is not None:
            deed = Deed.REMOVE if digest(was) == hash_written else Deed.LEAVE
            found.append(Change(deed, Wanted(Path(path)), was))
    return found


def content(path: Path) -> str | None:
    """Return a file's text, or ``-> target`` of a link; None where nothing is.

    Raises:
        OperatorError: it cannot be read.
    """
    try:
        if path.is_symlink():
            return f"-> {os.readlink(path)}"
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}", "run it as root") from error


def digest(text: str) -> str:
    """Return the hash that records keep."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def written(file: Wanted) -> str:
    """Return the hash of what a wanted file will hold."""
    return digest(_text(file))


def read_record(root: Path) -> Record | None:
    """Return the record of an installation, None where none is.

    Raises:
        OperatorError: it cannot be understood.
    """
    path = at(root, RECORD)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise OperatorError(
            f"{path} cannot be read: {error}", "run as root; if it is damaged, remove it"
        ) from error


def _text(file: Wanted) -> str:
    return f"-> {file.link}" if file.link else file.text


def _deed(was: str | None, now: str, *, ours: bool) -> Deed:
    if was is None:
        return Deed.CREATE
    if was == now:
        return Deed.KEEP
    return Deed.UPDATE if ours else Deed.CONFLICT

"""Log files of supervised daemons: their last lines, new lines, and JSON lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

TAIL_BYTES = 1 << 20  # the end of a file that is looked at
SHOWN_FIRST = ("timestamp", "level", "instance", "role", "event")


def tail(path: Path, lines: int) -> list[str]:
    """Return the last ``lines`` lines of a file, [] when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines else []


class Follower:
    """Reads what is added to a file, also after it was replaced by a new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = self._where()
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Yield the complete lines that have come since the last call."""
        inode, size = self._where()
        if inode != self._inode or size < self._offset:
            self._inode, self._offset, self._rest = inode, 0, b""
        if size <= self._offset:
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            added = file.read(size - self._offset)
        self._offset += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")

    def _where(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size


def moment(line: str) -> str:
    """Return the timestamp of a JSON line, to sort by; "" when it has none."""
    parsed = _parsed(line)
    return str(parsed.get("timestamp", "")) if parsed else ""


def pretty(line: str) -> str:
    """Return a JSON line as ``time level instance event key=value``; other lines as they are."""
    parsed = _parsed(line)
    if parsed is None or "event" not in parsed:
        return line
    time_of_day = str(parsed.get("timestamp", "")).partition("T")[2][:12]
    head = f"{time_of_day} {parsed.get('level', ''):<7} {parsed.get('instance', ''):<9} "
    facts = [f"{key}={value}" for key, value in parsed.items() if key not in SHOWN_FIRST]
    return f"{head}{parsed['event']}" + "".join(f"  {fact}" for fact in facts)


def _parsed(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

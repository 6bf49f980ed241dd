"""Carries an installation out on a host, or into the root of an image.

Each file is replaced at once (written beside it, then renamed). The record is written last, so an
installation that was interrupted is finished by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from daemons.cluster.errors import OperatorError
from pdctl.installation.state import RECORD, Change, Deed, Record, at, content, digest, written
from pdctl.installation.wanted import CONFIG, Wanted

KEPT_AS = ".edited"  # suffix of an edited file that --force replaced
TOOL_S = 60.0
EMPTY_WHEN_LEFT = ("/etc/systemd/system", "/etc/pd", "/etc/sysusers.d", "/var/lib/pd")


def apply(changes: Sequence[Change], record: Record, root: Path) -> Record:
    """Write what is to be written, remove what is to be removed, and return the record of it.

    Edited files (``CONFLICT``) are moved aside first; the caller has asked.

    Raises:
        OperatorError: a file cannot be written.
    """
    files: dict[str, str] = {}
    try:
        for change in changes:
            path = at(root, change.file.path)
            match change.deed:
                case Deed.CONFLICT:
                    path.replace(path.with_name(path.name + KEPT_AS))
                    write(change.file, root)
                case Deed.CREATE | Deed.UPDATE:
                    write(change.file, root)
                case Deed.REMOVE:
                    remove(path, root)
                case Deed.KEEP | Deed.LEAVE:
                    pass
            if change.deed not in (Deed.REMOVE, Deed.LEAVE):
                files[str(change.file.path)] = written(change.file)
        done = msgspec.structs.replace(record, files=files)
        body = msgspec.json.format(msgspec.json.encode(done), indent=2).decode()
        write(Wanted(RECORD, body + "\n"), root)
    except OSError as error:
        raise OperatorError(
            f"cannot write {error.filename}: {error.strerror}", "run it as root"
        ) from error
    return done


def write(file: Wanted, root: Path) -> None:
    """Make a file or a link be what is wanted, at once."""
    path = at(root, file.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    if file.link:
        draft.symlink_to(file.link)
    else:
        made = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
        with os.fdopen(made, "w") as out:
            os.fchmod(made, file.mode)  # whatever the umask
            out.write(file.text)
    draft.replace(path)


def remove(path: Path, root: Path) -> None:
    """Remove a file, and the folders that were made for it when they are empty now."""
    path.unlink(missing_ok=True)
    keep = {at(root, Path(each)).parent for each in EMPTY_WHEN_LEFT}
    folder = path.parent
    while folder not in keep and folder != root:
        try:
            folder.rmdir()
        except OSError:
            return  # something is left in it
        folder = folder.parent


def erase(record: Record, root: Path, *, purge: bool) -> list[str]:
    """Remove every recorded file, and the record; return those that stay.

    Edited files stay, and the operator's own (``/etc/pd``), unless they are purged.

    Raises:
        OperatorError: one cannot be removed.
    """
    kept = []
    try:
        for path, hash_written in reversed(record.files.items()):
            place = at(root, Path(path))
            was = content(place)
            theirs = Path(path).is_relative_to(CONFIG.parent)
            if not purge and was is not None and (theirs or digest(was) != hash_written):
                kept.append(path)
            else:
                remove(place, root)
        remove(at(root, RECORD), root)
    except OSError as error:
        raise OperatorError(
            f"cannot remove {error.filename}: {error.strerror}", "run it as root"
        ) from error
    return kept


def make_user(users_file: Path, root: Path) -> None:
    """Let systemd-sysusers make the service's user; harmless when it is there.

    Raises:
        OperatorError: the tool is absent or fails.
    """
    where = [] if root == Path("/") else [f"--root={root}"]
    tool("systemd-sysusers", *where, str(users_file))


def remove_tree(path: Path) -> None:
    """Remove a folder of ours with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def tool(*argv: str) -> str:
    """Run a tool of the system and return what it prints.

    Raises:
        OperatorError: it is absent, fails, or takes too long.
    """
    words = " ".join(argv)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_S, check=False)
    except FileNotFoundError:
        raise OperatorError(f"{argv[0]} is not installed", "pd's units need systemd") from None
    except subprocess.TimeoutExpired:
        raise OperatorError(f"{words} did not end in {TOOL_S:.0f} s") from None
    if done.returncode:
        raise OperatorError(f"{words} failed: {_last(done.stderr.splitlines())}")
    return done.stdout


def _last(lines: Iterable[str]) -> str:
    return next((line for line in reversed(list(lines)) if line.strip()), "without a word")

"""What ``pdctl up`` leaves on disk: who runs, since when, and where the logs are.

One folder per cluster under the user's state folder, readable by that user only. ``run.json`` is
replaced whole, so a reader never sees half of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pdctl.errors import CommandError
from pdctl.processes import Process

RUN_FILE = "run.json"
SCHEMA_VERSION = 1


class Child(msgspec.Struct, kw_only=True):
    """One daemon under supervision."""

    instance: str
    role: str
    pid: int = 0
    started: int = 0  # clock ticks after boot, see Process
    state: str = "waiting"  # running | waiting (to be started again) | left | failed
    restarts: int = 0
    exit_code: int | None = None  # of its last life; negative: the signal that ended it
    since_s: float = 0.0  # Unix time of the last change

    @property
    def process(self) -> Process:
        """The process of its present life."""
        return Process(self.pid, self.started)


class Run(msgspec.Struct, kw_only=True):
    """A cluster's part on this host, as ``run.json`` tells it."""

    cluster: str
    config: str  # absolute path of the cluster file
    config_hash: str
    host: str
    supervisor_pid: int
    supervisor_started: int
    began_s: float
    children: list[Child]
    stopping: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def supervisor(self) -> Process:
        """The process that started the daemons."""
        return Process(self.supervisor_pid, self.supervisor_started)

    @property
    def is_up(self) -> bool:
        """Whether anything of it still runs."""
        return self.supervisor.is_alive or bool(self.alive)

    @property
    def alive(self) -> list[Child]:
        """Daemons that run now."""
        return [child for child in self.children if child.pid and child.process.is_alive]

    def child(self, instance: str) -> Child | None:
        """Return the daemon of that name."""
        return next((child for child in self.children if child.instance == instance), None)


def state_directory() -> Path:
    """Return where runs are kept: ``$XDG_STATE_HOME/pd``, by default ``~/.local/state/pd``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    root = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local/state"
    return root / "pd"


def run_directory(cluster: str) -> Path:
    """Return the folder of a cluster's run; its name is kept to characters of a file name."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in cluster).lstrip(".")
    return state_directory() / (safe or "_")


def make_run_directory(cluster: str) -> Path:
    """Make the folder of a cluster's run, and the one of its logs; ours alone (0700).

    Raises:
        CommandError: it cannot be made, or belongs to somebody else.
    """
    directory = run_directory(cluster)
    try:
        for path in (directory, directory / "logs"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_uid != os.geteuid():
                raise CommandError(f"{path} belongs to another user", "set XDG_STATE_HOME")
            path.chmod(0o700)
    except OSError as error:
        raise CommandError(
            f"cannot make {directory}: {error.strerror}", "set XDG_STATE_HOME to a writable folder"
        ) from error
    return directory


def log_path(cluster: str, instance: str) -> Path:
    """Return where a supervised daemon's standard output and error go."""
    return run_directory(cluster) / "logs" / f"{instance}.log"


def write_run(directory: Path, run: Run) -> None:
    """Replace ``run.json``."""
    target = directory / RUN_FILE
    draft = target.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(run), indent=2))
    draft.replace(target)


def read_run(directory: Path) -> Run | None:
    """Return the run of a folder, None when there is none or it cannot be understood."""
    try:
        return msgspec.json.decode((directory / RUN_FILE).read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError):
        return None


def runs() -> Iterator[Run]:
    """Yield every run of this user on this host, also those that have ended."""
    for path in sorted(state_directory().glob(f"*/{RUN_FILE}")):
        run = read_run(path.parent)
        if run is not None:
            yield run

"""``pdctl install`` and ``diff``: this host's units and files, and nothing by halves.

What is to be done is worked out first; an edited file stops all before anything is written.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import Output, View, confirm, say, show

if TYPE_CHECKING:
    from daemons.cluster.load import ClusterFile
    from pdctl.installation.state import Change, Record
    from pdctl.installation.wanted import Choice

Prefix = Annotated[
    Path, typer.Option(help="The virtual environment that the units run.", metavar="DIR")
]
User = Annotated[str, typer.Option(help="The service's user; made if it is not there.")]
Root = Annotated[
    Path, typer.Option(help="Write into the root of an image instead of this host.", metavar="DIR")
]
Host = Annotated[
    str | None, typer.Option(help="Which host of the file this machine is.", metavar="NAME")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]


def install(
    config: options.Config = None,
    host: Host = None,
    prefix: Prefix = Path("/opt/pd"),
    user: User = "pd",
    root: Root = Path("/"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace edited files; they stay beside as .edited.")
    ] = False,
    model: Annotated[
        bool, typer.Option("--model/--no-model", help="Put the embedded model into /var/cache/pd.")
    ] = True,
    dry_run: DryRun = False,
    yes: options.Yes = False,
) -> int:
    """Install this host's daemons as systemd services; again and again without harm.

    Example: pdctl install --config cluster.yaml && pdctl up
    """
    from pdctl.installation.state import Deed
    from pdctl.installation.steps import apply, make_user
    from pdctl.installation.wanted import USERS

    file, choice = _choice(config, host, prefix, user)
    planned = _planned(file, choice, root)
    todo = [change for change in planned if change.deed is not Deed.KEEP]
    for change in todo:
        say(f"  {change.deed.value:<8} {change.file.path}")
    edited = [str(change.file.path) for change in todo if change.deed is Deed.CONFLICT]
    if edited and not force:
        raise CommandError(
            f"edited since, or not ours: {', '.join(edited)}",
            "pdctl diff shows how; --force replaces them and keeps the old ones as .edited",
            code=Exit.CONFLICT,
        )
    if dry_run:
        return Exit.OK
    _check_software(choice, root)
    if todo:
        confirm(f"write {len(todo)} files under {root}?", yes=yes)
    apply(planned, _record(choice), root)
    make_user(_at(root, USERS), root)
    if model:
        _place_model(file, choice, root)
    reload_units(root)
    say(f"installed for host {choice.host}; pdctl up starts it" if todo else "nothing to change")
    return Exit.OK


def diff(
    config: options.Config = None,
    host: Host = None,
    prefix: Prefix = Path("/opt/pd"),
    user: User = "pd",
    root: Root = Path("/"),
    output: options.Format = Output.TABLE,
) -> int:
    """Show what pdctl install would change here; exit code 0 nothing, 1 something.

    Example: pdctl diff --config cluster.yaml
    """
    from pdctl.installation.state import Deed

    file, choice = _choice(config, host, prefix, user)
    todo = [each for each in _planned(file, choice, root) if each.deed is not Deed.KEEP]
    if output in (Output.TABLE, Output.WIDE):
        for change in todo:
            sys.stdout.writelines(_unified(change))
    else:
        rows = [{"path": str(each.file.path), "deed": each.deed.value} for each in todo]
        document: dict[str, Any] = {"schema_version": 1, "host": choice.host, "changes": rows}
        show(View(document, names=[row["path"] for row in rows]), output)
    return Exit.FAILED if todo else Exit.OK


def _choice(
    config: Path | None, host: str | None, prefix: Path, user: str
) -> tuple[ClusterFile, Choice]:
    from pdctl import target
    from pdctl.installation.wanted import Choice

    found = target.find(config)
    return found.file, Choice(target.this_host(found.cluster, host), prefix.absolute(), user)


def _planned(file: ClusterFile, choice: Choice, root: Path) -> list[Change]:
    from pdctl.installation.state import changes, read_record
    from pdctl.installation.wanted import wanted
    from pdctl.share import share_directory

    templates = {
        path.name: path.read_text() for path in sorted(share_directory("systemd").iterdir())
    }
    return changes(wanted(file, choice, templates), read_record(root), root)


def _record(choice: Choice) -> Record:
    from daemons.runtime.program import version
    from pdctl.installation.state import Record

    return Record(version=version(), host=choice.host, prefix=str(choice.prefix), user=choice.user)


def _check_software(choice: Choice, root: Path) -> None:
    if not _at(root, choice.prefix / "bin/pdctl").exists():
        raise CommandError(
            f"no pd in {choice.prefix}, which the units would run",
            "from a wheel: PYTHONPATH=pd-VERSION-py3-none-any.whl python3 -m pdctl.seed",
            code=Exit.CONFLICT,
        )


def _place_model(file: ClusterFile, choice: Choice, root: Path) -> None:
    """Put the embedded model where the service's user finds it, from our own cache."""
    import shutil

    from daemons.cluster.models import EMBEDDED, embedded_directory
    from pdctl.installation.wanted import CACHE

    name = file.cluster.model
    place = _at(root, CACHE / "models" / name)
    if name not in EMBEDDED or place.is_dir():
        return
    own = embedded_directory(name)
    if not own.is_dir():
        raise CommandError(
            f"the embedded model {name} is not here yet",
            f"XDG_CACHE_HOME={CACHE.parent} {choice.prefix}/bin/python -m daemons.engine.embedded, "
            "or --no-model",
            code=Exit.CONFLICT,
        )
    say(f"  copy     {own} -> {place}")
    draft = place.with_name(f".{name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(own, draft)
    draft.rename(place)


def reload_units(root: Path) -> None:
    from pdctl import units as systemd

    if root == Path("/") and systemd.running():
        systemd.daemon_reload()


def _unified(change: Change) -> list[str]:
    from pdctl.installation.state import Deed

    path = str(change.file.path)
    head = [f"{change.deed.value} {path}\n"]
    if change.file.is_secret or change.deed in (Deed.REMOVE, Deed.LEAVE):
        return head
    now = f"-> {change.file.link}" if change.file.link else change.file.text
    lines = difflib.unified_diff(
        (change.was or "").splitlines(keepends=True), now.splitlines(keepends=True), path, path
    )
    return [*head, *(line if line.endswith("\n") else f"{line}\n" for line in lines)]


def _at(root: Path, path: Path) -> Path:
    from pdctl.installation.state import at

    return at(root, path)

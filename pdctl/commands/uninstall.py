"""``pdctl uninstall``: takes away what ``pdctl install`` wrote, after its services have drained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.commands import install
from pdctl.errors import Exit
from pdctl.render import confirm, say

if TYPE_CHECKING:
    from pdctl.installation.state import Record


def uninstall(
    root: install.Root = Path("/"),
    purge: Annotated[
        bool,
        typer.Option("--purge", help="Also /etc/pd, edited files, the model cache and the user."),
    ] = False,
    dry_run: install.DryRun = False,
    yes: options.Yes = False,
) -> int:
    """Stop this host's services and remove all that install wrote.

    Example: pdctl uninstall --purge --yes
    """
    from pdctl.installation.state import read_record
    from pdctl.installation.steps import erase

    record = read_record(root)
    if record is None:
        say("nothing of ours is installed here")
        return Exit.OK
    units = _units_of(record)
    for words in (
        *(f"stop     {unit}" for unit in units),
        *(f"remove   {p}" for p in record.files),
    ):
        say(f"  {words}")
    if dry_run:
        return Exit.OK
    confirm(f"stop and remove the services of host {record.host}?", yes=yes)
    if root == Path("/"):
        _stop(units)
    kept = erase(record, root, purge=purge)
    install.reload_units(root)
    _remove_rest(record, root, purge=purge)
    for path in kept:
        say(f"  kept     {path} ")
    say("uninstalled" + ("; --purge also removes what was kept" if kept else ""))
    return Exit.OK


def _units_of(record: Record) -> list[str]:
    """Return the units that were enabled, in the order in which they are stopped."""
    from pdctl.units import stopping_order

    names = {Path(path).name for path in record.files if "/pd.target.wants/" in path}
    return sorted(names, key=stopping_order)


def _stop(units: list[str]) -> None:
    from pdctl import units as systemd

    if systemd.running():
        for unit in units:
            systemd.stop([unit])


def _remove_rest(record: Record, root: Path, *, purge: bool) -> None:
    from pdctl.installation.state import at
    from pdctl.installation.steps import remove_tree, tool
    from pdctl.installation.wanted import CACHE

    prefix = at(root, Path(record.prefix))
    if (prefix / "pyvenv.cfg").exists() and (prefix / "bin/pdctl").exists():
        say(f"  remove   {prefix}")
        remove_tree(prefix)
    if purge:
        remove_tree(at(root, CACHE))
        if root == Path("/") and os.geteuid() == 0:
            tool("userdel", record.user)

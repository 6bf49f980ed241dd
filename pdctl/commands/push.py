"""``pdctl config push``: the cluster file to every host of it, checked, shown, and at once or not.

On each host the file is replaced whole, keeps its owner and mode, and is read back. The key is no
part of it and travels by other ways. Daemons go on with the old file until they are restarted, or
told to read it again.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl import options
from pdctl.errors import CommandError
from pdctl.render import confirm, say

if TYPE_CHECKING:
    from daemons.cluster.load import ClusterFile
    from pdctl.hosts import Host

TO = Path("/etc/pd/cluster.yaml")
# Its argument is the target. The draft lies beside it: the last step is one rename. Its name
# is its own, for another operator may do the same just now.
REPLACE = (
    'set -e; mkdir -p "$(dirname "$1")"; draft=$(mktemp "$1.XXXXXX"); cat >"$draft"; '
    'chmod 644 "$draft"; '
    'if [ -e "$1" ]; then chown --reference="$1" "$draft"; chmod --reference="$1" "$draft"; fi; '
    'sync "$draft"; mv -f "$draft" "$1"; sha256sum <"$1"'
)


def push(
    config: options.Config = None,
    to: Annotated[
        Path, typer.Option(help="Where the file lies on each host.", metavar="PATH")
    ] = TO,
    reload: Annotated[
        bool, typer.Option("--reload", help="Let the daemons read what may change meanwhile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change.")] = False,
    yes: options.Yes = False,
) -> int:
    """Check the cluster file and put it on every host of it; exit code 5 if one was not reached.

    Example: pdctl config push --config cluster.yaml
    """
    from pdctl import target
    from pdctl.hosts import done_on, hosts_of, on_each, verdict
    from pdctl.places import places

    found = target.find(config)
    places(found.cluster)  # refuses what a daemon of it would refuse
    text = found.file.path.read_text()
    hosts = {host.name: host for host in hosts_of(found.cluster)}
    old = on_each(list(hosts.values()), lambda host: _read(host, to))
    stale = [
        host for name, host in hosts.items() if isinstance(old[name], str) and old[name] != text
    ]
    for host in stale:
        sys.stdout.writelines(_unified(str(old[host.name]), text, f"{host.name}:{to}"))
    same = [name for name, said in old.items() if said == text]
    if same:
        say(f"  the same already: {', '.join(same)}")
    if dry_run or not stale:
        return verdict(old)
    sys.stdout.flush()
    confirm(f"put it on {', '.join(host.name for host in stale)}?", yes=yes)
    results = on_each(stale, lambda host: _write(host, to, text))
    have = [host for host in stale if host.name in done_on(results)]
    if reload:
        results |= on_each(have, lambda host: _reload(found.file, host))
    if have:
        rest = "what cannot change meanwhile waits for"
        say(f"{rest if reload else 'daemons run on the old one until'}: pdctl restart --rolling")
    return verdict({**{n: r for n, r in old.items() if isinstance(r, CommandError)}, **results})


def _read(host: Host, path: Path) -> str:
    """Return a host's file, "" where it has none."""
    return host.run(["sh", "-c", '[ ! -e "$1" ] || cat "$1"', "sh", str(path)])


def _write(host: Host, path: Path, text: str) -> None:
    told = host.run(["sh", "-c", REPLACE, "sh", str(path)], said=text).split()
    wanted = hashlib.sha256(text.encode()).hexdigest()
    if not told or told[0] != wanted:
        raise CommandError(
            f"{host.name}: what was written is not what was sent", "is its disk full?"
        )
    say(f"  {host.name}: {path} is {wanted[:12]}")


def _reload(file: ClusterFile, host: Host) -> None:
    from pdctl import units
    from pdctl.installation.wanted import units_of_host

    for name in units_of_host(file, host.name):
        if name.endswith(".service"):
            units.reload(name, host=host.address)
            say(f"  {units.instance_of(name)} has read it")


def _unified(old: str, new: str, name: str) -> list[str]:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, "new"
    )
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]

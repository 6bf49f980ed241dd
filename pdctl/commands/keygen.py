"""``pdctl keygen``: a new key for a cluster, in a file that only its owner can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdctl.errors import Exit
from pdctl.render import say


def keygen(
    path: Annotated[Path, typer.Argument(help="Where to; a file that is there stays as it is.")],
) -> int:
    """Make a cluster's key. Copy it to every host, and name it as key_file in the cluster file.

    Example: pdctl keygen /etc/pd/cluster.key
    """
    from daemons.cluster.key import make_key

    key = make_key(path)
    say(f"{path} (hash {key.short_hash}) is for its owner only; the same file goes to every host")
    say(f"in the cluster file: key_file: {path.absolute()}")
    return Exit.OK

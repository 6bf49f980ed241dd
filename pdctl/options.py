"""Options that several verbs share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdctl import completion
from pdctl.render import Output

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The cluster file. Without it: /etc/pd/cluster.yaml, then the cluster that is up "
        "on this host, then the packaged one-host example.",
        show_default=False,
    ),
]
Format = Annotated[
    Output, typer.Option("--output", "-o", help="How to show it.", case_sensitive=False)
]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        help="Show it again and again (--watch or --watch=SECONDS); JSON: one object a line.",
        min=0.1,
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AllHosts = Annotated[
    bool,
    typer.Option(
        "--all-hosts", "-A", help="Every host of the cluster file: by systemd there, over ssh."
    ),
]
Instance = Annotated[
    str, typer.Argument(help="An instance of the cluster file.", autocompletion=completion.names)
]

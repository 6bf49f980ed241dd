"""The verbs of pdctl, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from pdctl.commands.down import down
from pdctl.commands.status import status
from pdctl.commands.up import up
from pdctl.errors import EXIT_CODES_HELP

app = typer.Typer(
    name="pdctl",
    help="Start, watch, drain and explain a prefill/decode cluster.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Start, watch, drain and explain a prefill/decode cluster."""


app.command()(up)
app.command()(down)
app.command()(status)

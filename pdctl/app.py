"""The verbs of pdctl, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from pdctl.commands import bench, config, trace
from pdctl.commands.await_ import await_
from pdctl.commands.chaos import chaos
from pdctl.commands.chat import chat
from pdctl.commands.completion import completion
from pdctl.commands.doctor import check, doctor
from pdctl.commands.down import down
from pdctl.commands.drain import drain, undrain
from pdctl.commands.events import events
from pdctl.commands.install import diff, install
from pdctl.commands.keygen import keygen
from pdctl.commands.logs import logs
from pdctl.commands.maybe_stuck import maybe_stuck
from pdctl.commands.restart import restart
from pdctl.commands.rooms import rooms
from pdctl.commands.status import status
from pdctl.commands.support_bundle import support_bundle
from pdctl.commands.top import top
from pdctl.commands.uninstall import uninstall
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
app.command()(top)
app.command()(events)
app.command()(rooms)
app.command("maybe-stuck")(maybe_stuck)
app.add_typer(trace.app, name="trace")
app.command()(drain)
app.command()(undrain)
app.command()(restart)
app.command("await")(await_)
app.command()(logs)
app.command()(chat)
app.command()(install)
app.command()(uninstall)
app.command()(diff)
app.command()(doctor)
app.command()(check)
app.command("support-bundle")(support_bundle)
app.command()(keygen)
app.command()(completion)
app.command()(chaos)
app.add_typer(bench.app, name="bench")
app.add_typer(config.app, name="config")

"""``pdctl doctor``: can this host run its part of the cluster? Checks with a hint each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import Exit
from pdctl.render import Output, View, show

if TYPE_CHECKING:
    from pdctl.checks import Check

SCHEMA_VERSION = 1
COLUMNS = ("CHECK", "STATUS", "VALUE", "HINT")
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    host: Annotated[
        str | None,
        typer.Option(help="Which host of the file this machine is.", metavar="NAME"),
    ] = None,
) -> int:
    """Check this host; exit code 1 when a check fails, 0 when they are only warnings."""
    from pdctl.checks import Status, checks

    found = list(checks(config, host))
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "doctor",
        "checks": [_facts(check) for check in found],
    }
    rows = [[check.name, check.status.value, check.value, check.hint or "-"] for check in found]
    show(View(document, COLUMNS, rows, [check.name for check in found], styles=STYLES), output)
    return Exit.FAILED if any(check.status is Status.FAIL for check in found) else Exit.OK


def _facts(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "status": check.status.value,
        "value": check.value,
        "hint": check.hint,
    }

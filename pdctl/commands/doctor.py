"""``pdctl doctor`` and ``check``: can this host run its part, and does every pair transfer?

Nothing is changed; a pair that serves gets one short room of our own. For systemd's
``ExecStartPre=`` there is ``--host-only``, for Nagios and its like ``--nagios``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import completion, options
from pdctl.errors import CommandError, Exit
from pdctl.finding import Status, bad_first, worst
from pdctl.render import Output, View, show

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.finding import Check

SCHEMA_VERSION = 1
COLUMNS = ("CHECK", "STATUS", "VALUE", "HINT")
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
NAGIOS = {Status.OK: (0, "OK"), Status.WARN: (1, "WARNING"), Status.FAIL: (2, "CRITICAL")}

Host = Annotated[
    str | None, typer.Option(help="Which host of the file this machine is.", metavar="NAME")
]
HostOnly = Annotated[
    bool,
    typer.Option(
        "--host-only", help="Only this host, whatever the cluster does: for ExecStartPre=."
    ),
]
Nagios = Annotated[
    bool,
    typer.Option(
        "--nagios", help="One line, and exit code 0 ok, 1 warning, 2 critical, as probes want it."
    ),
]


def doctor(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    host: Host = None,
    host_only: HostOnly = False,
    nagios: Nagios = False,
) -> int:
    """Check this host and every pair; exit code 1 when a check fails, 0 with mere warnings.

    Example: pdctl doctor --host-only
    """
    from pdctl.checks import checks

    found = list(checks(config, host) if host_only else checks(config, host, others=True))
    if nagios:
        return _as_probe(found)
    _show(found, output)
    if output in (Output.TABLE, Output.WIDE):
        _show_matrix(found)
    return Exit.FAILED if worst(found) is Status.FAIL else Exit.OK


def check(
    name: Annotated[
        str,
        typer.Argument(help="A check as pdctl doctor names it.", autocompletion=completion.checks),
    ],
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    host: Host = None,
    nagios: Nagios = False,
) -> int:
    """Make one check of pdctl doctor; exit code 1 when it fails.

    Example: pdctl check pair-p0-d0 --nagios
    """
    found = list(_one(name, config, host))
    if nagios:
        return _as_probe(found)
    _show(found, output)
    return Exit.FAILED if worst(found) is Status.FAIL else Exit.OK


def _one(name: str, config: Path | None, host: str | None) -> Iterator[Check]:
    from pdctl.checks import examinations

    known: list[str] = []
    for examination in examinations(config, host, others=True):
        known += examination.names
        if name in examination.names:
            made = [check for check in examination.make() if check.name == name]
            if not made:
                raise CommandError(
                    f"{name} could not be checked", "pdctl doctor shows why", code=Exit.UNREACHABLE
                )
            yield from made
            return
    raise CommandError(f"no check {name}", f"there are: {', '.join(known)}", code=Exit.NOT_FOUND)


def _as_probe(found: list[Check]) -> int:
    """Print one line in the form of monitoring plugins, and return their exit code."""
    code, word = NAGIOS[worst(found)]
    bad = [
        f"{each.name}: {each.value}" for each in bad_first(found) if each.status is not Status.OK
    ]
    words = "; ".join(bad) or ", ".join(each.value for each in found[:1])
    print(f"PD {word} - {words.replace('|', '/')} | checks={len(found)} bad={len(bad)}")
    return code


def _show(found: list[Check], output: Output) -> None:
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "doctor",
        "checks": [_facts(check) for check in found],
    }
    rows = [[check.name, check.status.value, check.value, check.hint or "-"] for check in found]
    names = [check.name for check in found]
    show(View(document, COLUMNS, rows, names, folded=("VALUE", "HINT"), styles=STYLES), output)


def _show_matrix(found: list[Check]) -> None:
    """Draw the speed from every prefill to every decode, where pairs were tried."""
    from pdctl.pairs import matrix

    decodes, rows = matrix(found)
    if rows:
        print()
        show(View({}, ("WRITES", *(f"to {name}" for name in decodes)), rows), Output.TABLE)


def _facts(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "status": check.status.value,
        "value": check.value,
        "hint": check.hint,
        "pair": check.pair,
        "bytes_per_s": check.bytes_per_s,
    }

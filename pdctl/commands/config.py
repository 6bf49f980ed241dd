"""``pdctl config check`` and ``view``: is the cluster file right, and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.commands.push import push
from pdctl.errors import Exit
from pdctl.render import Output, View, say, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.target import Target

SCHEMA_VERSION = 1
COLUMNS = ("DAEMON", "SETTING", "VALUE", "ORIGIN")

app = typer.Typer(help="Check, show and distribute the cluster file.", no_args_is_help=True)
app.command("push")(push)


@app.command("check")
def check(config: options.Config = None) -> int:
    """Read the cluster file as every daemon of it would.

    Example: pdctl config check --config cluster.yaml
    """
    from pdctl import target
    from pdctl.places import places

    found = target.find(config)
    known = places(found.cluster)
    for role in ("prefill", "decode"):
        if not any(place.role.value == role for place in known.values()):
            say(f"note: it has no {role}, so it can serve nothing")
    say(f"{found.file.path} ({found.origin}) is right: {', '.join(known)}")
    return Exit.OK


@app.command("view")
def view(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value came from.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--instance", "-i", help="This daemon only.", metavar="NAME")
    ] = None,
) -> int:
    """Show every effective setting of every daemon.

    Example: pdctl config view --origin --instance p0
    """
    from daemons.cluster.load import instance_names, role_of
    from pdctl import target

    found = target.find(config)
    if name is not None:
        role_of(found.cluster, name)  # refuses a name that the file does not have
    names = [name] if name else instance_names(found.cluster)
    effective = {each: dict(_effective(found, each)) for each in names}
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "config",
        "config": str(found.file.path),
        "found_by": found.origin,
        "hash": found.file.hash,
        "daemons": {
            each: {
                setting: {"value": value, "origin": source}
                for setting, (value, source) in settings.items()
            }
            for each, settings in effective.items()
        },
    }
    rows = [
        [each, setting, "-" if value in ("", None) else str(value), source]
        for each, settings in effective.items()
        for setting, (value, source) in settings.items()
    ]
    heading = f"{found.file.path} ({found.origin}, hash {found.file.hash})"
    wide_only = () if origin else ("ORIGIN",)
    show(View(document, COLUMNS, rows, names, wide_only, above=[(heading, "bold")]), output)
    return Exit.OK


def _effective(found: Target, name: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    import msgspec

    from daemons.cluster.key import load_key
    from daemons.cluster.load import settings_of
    from pdctl.places import settings

    cluster = found.cluster
    _, origins = settings_of(cluster, name)
    yield "model", (cluster.model, "model" if _says(found, "model") else "default")
    key = load_key(cluster)
    yield "key", (f"set, hash {key.short_hash}" if key else "unset", key.origin if key else "-")
    guarded = "guard_metrics"
    yield guarded, (cluster.guard_metrics, guarded if _says(found, guarded) else "default")
    values = msgspec.to_builtins(settings(cluster, name))
    for setting, value in _flat(values, ""):
        yield setting, (value, origins.get(setting, "default"))


def _says(found: Target, name: str) -> bool:
    import yaml

    return name in yaml.safe_load(found.file.path.read_bytes())


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

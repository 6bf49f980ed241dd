"""Words that the shell completes: instance names, checks and recent rooms, asked for live.

They are those of the cluster that the line so far names by ``--config``.
"""

from __future__ import annotations

from pathlib import Path

import typer


def names(incomplete: str, ctx: typer.Context | None = None) -> list[str]:
    """Return the instance names that begin so."""
    from daemons.cluster.load import instance_names
    from pdctl import target

    try:
        known = instance_names(target.find(_config(ctx)).cluster)
    except Exception:  # noqa: BLE001 - a completion that fails must not print
        return []
    return [name for name in known if name.startswith(incomplete)]


def checks(incomplete: str, ctx: typer.Context | None = None) -> list[str]:
    """Return the names of checks that begin so."""
    from pdctl.checks import examinations

    try:
        known = [name for each in examinations(_config(ctx), None) for name in each.names]
    except Exception:  # noqa: BLE001 - a completion that fails must not print
        return []
    return [name for name in known if name.startswith(incomplete)]


def rooms(incomplete: str, ctx: typer.Context | None = None) -> list[str]:
    """Return recent rooms that begin so, in their short form."""
    from daemons.protocol.ids import room_short
    from pdctl import target
    from pdctl.survey import located, rooms_of

    try:
        rows, _ = rooms_of(located(target.find(_config(ctx)).cluster))
    except Exception:  # noqa: BLE001 - a completion that fails must not print
        return []
    found = {room_short(row.room) for each in rows.values() for row in each}
    return sorted(room for room in found if room.startswith(incomplete))


def _config(ctx: typer.Context | None) -> Path | None:
    given = ctx.params.get("config") if ctx is not None else None
    return Path(given) if given else None

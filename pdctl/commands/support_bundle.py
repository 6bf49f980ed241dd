"""``pdctl support-bundle``: one file with all that a person far away needs, and no secret."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl import options
from pdctl.errors import CommandError, Exit
from pdctl.render import say

if TYPE_CHECKING:
    from pdctl.places import Place
    from pdctl.target import Target

LOG_LINES = 2000
FAILED_ROOMS = 20  # whose stories go in
ERRORS_TOLD = 120  # characters


def support_bundle(
    config: options.Config = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The file; pd-support-TIME.tar.gz without it.", metavar="FILE"),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="How many of each log's last lines.", min=0)
    ] = LOG_LINES,
) -> int:
    """Collect status, events, rooms, stories, checks and logs into one file, without secrets.

    Example: pdctl support-bundle --out bundle.tar.gz
    """
    from daemons.cluster.key import load_key
    from pdctl import target
    from pdctl.bundle import packed, spellings

    found = target.find(config)
    folder = f"pd-support-{time.strftime('%Y%m%d-%H%M%S')}"
    path = out or Path(f"{folder}.tar.gz")
    texts = dict(_collected(found, lines))
    raw = packed(folder, texts, spellings(load_key(found.cluster)))
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(raw)
    except FileExistsError:
        raise CommandError(
            f"{path} is there already", "--out names another", code=Exit.CONFLICT
        ) from None
    except OSError as error:
        raise CommandError(
            f"cannot write {path}: {error.strerror}", "--out names another"
        ) from error
    say(f"{len(texts)} files, {len(raw) >> 10} KiB; look into it before you send it")
    print(path)
    return Exit.OK


def _collected(found: Target, lines: int) -> Iterator[tuple[str, str]]:
    from pdctl.survey import located

    known = located(found.cluster)
    parts: list[tuple[str, Callable[[], str]]] = [
        ("cluster.yaml", lambda: _cluster_file(found)),
        ("status.json", lambda: _json(_status(found))),
        ("events.json", lambda: _json(_events(found))),
        ("rooms.json", lambda: _json(_rooms(known))),
        ("failed-rooms.json", lambda: _json(_failed(known))),
        ("checks.json", lambda: _json(_checks(found))),
        ("versions.txt", _versions),
    ]
    for name, collect in parts:
        try:
            yield name, collect()
        except Exception as error:  # noqa: BLE001 - a bundle of a broken cluster is what is wanted
            yield f"{name}.missing", f"{type(error).__name__}: {error}"[:ERRORS_TOLD] + "\n"
    yield from _logs(found, lines)


def _json(document: Any) -> str:
    return json.dumps(document, indent=1) + "\n"


def _cluster_file(found: Target) -> str:
    import yaml

    from pdctl.bundle import without_secrets

    return yaml.safe_dump(without_secrets(yaml.safe_load(found.file.path.read_bytes())))


def _status(found: Target) -> Any:
    from pdctl.commands.status import look

    return look(found)[0].document


def _events(found: Target) -> Any:
    from pdctl.commands.events import look, view

    return view(found, look(found, None, 1000)).document


def _rooms(known: dict[str, Place]) -> Any:
    import msgspec

    from pdctl.survey import rooms_of

    rows, troubles = rooms_of(known)
    return {"rooms": msgspec.to_builtins(rows), "silent": troubles}


def _failed(known: dict[str, Place]) -> Any:
    import msgspec

    from pdctl.merge import summaries
    from pdctl.survey import rooms_of, stories_of

    failed = [one for one in summaries(rooms_of(known)[0]) if one.state == "failed"]
    return [msgspec.to_builtins(stories_of(known, one.room)[0]) for one in failed[:FAILED_ROOMS]]


def _checks(found: Target) -> Any:
    from pdctl.checks import checks

    return [
        {"name": check.name, "status": check.status.value, "value": check.value}
        for check in checks(found.file.path, None, others=True)
    ]


def _versions() -> str:
    import platform
    import sys
    from importlib.metadata import distributions

    found = sorted({f"{each.metadata['Name']} {each.version}" for each in distributions()})
    return "\n".join([platform.platform(), f"python {sys.version}", *found]) + "\n"


def _logs(found: Target, lines: int) -> Iterator[tuple[str, str]]:
    from pdctl import units
    from pdctl.logfiles import tail
    from pdctl.runs import log_path, read_run, run_directory

    if units.installed():
        for unit in units.enabled():
            if unit.endswith(".service"):
                yield f"logs/{unit}.log", "\n".join(units.journal([unit], lines)) + "\n"
        return
    run = read_run(run_directory(found.cluster.name))
    for child in run.children if run else []:
        path = log_path(found.cluster.name, child.instance)
        yield f"logs/{child.instance}.log", "\n".join(tail(path, lines)) + "\n"

"""``pdctl status``: the home screen, health first, then one row per daemon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pdctl import options
from pdctl.errors import Exit
from pdctl.render import Output, View, duration, milliseconds, rate, repeat, say, show

if TYPE_CHECKING:
    from pdctl.health import Health
    from pdctl.survey import Survey
    from pdctl.target import Target

SCHEMA_VERSION = 1
COLUMNS = (
    "NAME",
    "ROLE",
    "HOST",
    "STATE",
    "ROOMS boot/wait/run/fly",
    "KV%",
    "QUEUE",
    "TTFT p99",
    "ITL p99",
    "WIRE",
    "VERSION",
    "UP",
    "ADDRESS",
    "EPOCH",
    "TRANSPORT",
    "PEERS",
    "MODEL",
    "FILE",
)
SPARE = ("VERSION", "UP", "HOST", "ROLE", "QUEUE", "WIRE")
WIDE_ONLY = ("ADDRESS", "EPOCH", "TRANSPORT", "PEERS", "MODEL", "FILE")
STATE_STYLES = {
    "ready": "green",
    "draining": "yellow",
    "starting": "yellow",
    "not-ready": "yellow",
    "lost": "bold red",
    "silent": "bold red",
    "absent": "bold red",
}
# Stages of both workers under the four heads of the ROOMS column.
STAGES = {
    "boot": ("bootstrap", "prealloc"),
    "wait": ("waiting", "prebuilt", "retracted"),
    "run": ("forward", "running"),
    "fly": ("inflight", "transfer"),
}


def status(
    config: options.Config = None,
    output: options.Format = Output.TABLE,
    watch: options.Watch = None,
) -> int:
    """Show the health of the cluster and every daemon of it.

    Example: pdctl status --watch=5
    """
    from pdctl import target

    found = target.find(config)
    if watch is not None:
        repeat(lambda: look(found)[0], output, watch)
    view, health = look(found)
    show(view, output)
    if health.unreachable:
        say("nobody answers; pdctl up starts this host's part")
        return Exit.UNREACHABLE
    return Exit.OK if not health.reasons else Exit.DEGRADED


def look(found: Target) -> tuple[View, Health]:
    """Return the home screen and what it says of the whole."""
    from pdctl.health import STYLES, health_of
    from pdctl.survey import look as asked

    survey = asked(found.cluster)
    health = health_of(survey, found.file.hash)
    rows = [_facts(survey, name) for name in survey.places]
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "status",
        "cluster": found.cluster.name,
        "config": str(found.file.path),
        "config_hash": found.file.hash,
        "health": {"level": health.level.value, "reasons": list(health.reasons)},
        "daemons": rows,
    }
    view = View(
        document,
        COLUMNS,
        [_row(facts) for facts in rows],
        [facts["name"] for facts in rows],
        WIDE_ONLY,
        SPARE,
        ("TRANSPORT",),
        above=[(health.line, STYLES[health.level])],
        styles=STATE_STYLES,
    )
    return view, health


def _facts(survey: Survey, name: str) -> dict[str, Any]:
    """Return what is known of one daemon; None stands for what it does not say."""
    from pdctl.health import kv_share, state_of

    place = survey.places[name]
    said = survey.statuses.get(name)
    listed = survey.instances.get(name)
    facts: dict[str, Any] = {
        "name": name,
        "role": place.role.value,
        "host": place.host,
        "address": place.where,
        "state": state_of(survey, name),
        "version": listed.version if listed else None,
        "up_s": time.time() - listed.since_s if listed and listed.since_s else None,
        "epoch": listed.epoch if listed else None,
        "rooms": None,
        "rooms_by_stage": None,
        "kv_share": None,
        "pages": None,
        "window_pages": None,
        "rows": None,
        "ttft_p99_s": None,
        "itl_p99_s": None,
        "wire_bytes_per_s": None,
        "transport": None,
        "wires": None,
        "peers": None,
        "model": None,
        "config_hash": None,
        "trouble": survey.troubles.get(name),
    }
    if said is not None:
        facts |= {
            "version": said.version,
            "up_s": said.up_s,
            "epoch": said.epoch,
            "rooms": sum(said.rooms.values()),
            "rooms_by_stage": said.rooms,
            "kv_share": round(kv_share(said.pages, said.pages_total), 4)
            if said.pages_total
            else None,
            "pages": said.pages,
            "window_pages": said.window_pages,
            "rows": said.rows,
            "ttft_p99_s": said.ttft_p99_s,
            "itl_p99_s": said.itl_p99_s,
            "wire_bytes_per_s": said.wire_bytes_per_s,
            "transport": said.transport,
            "wires": {
                peer: {"transport": wire.transport, "bytes": wire.bytes, "share": wire.share}
                for peer, wire in said.wires.items()
            },
            "peers": said.peers,
            "model": said.model,
            "config_hash": said.config_hash,
        }
    return facts


def _row(facts: dict[str, Any]) -> list[str]:
    stages: dict[str, int] | None = facts["rooms_by_stage"]
    counts = {head: sum((stages or {}).get(stage, 0) for stage in STAGES[head]) for head in STAGES}
    is_worker = facts["role"] in ("prefill", "decode")
    if stages is None:
        rooms = "-"
    else:
        rooms = "/".join(map(str, counts.values())) if is_worker else str(facts["rooms"])
    peers: dict[str, str] = facts["peers"] or {}
    return [
        facts["name"],
        facts["role"],
        facts["host"],
        facts["state"],
        rooms,
        _kv(facts),
        str(counts["wait"]) if stages is not None and is_worker else "-",
        milliseconds(facts["ttft_p99_s"]),
        milliseconds(facts["itl_p99_s"]),
        rate(facts["wire_bytes_per_s"]),
        facts["version"] or "-",
        "-" if facts["up_s"] is None else duration(facts["up_s"]),
        facts["address"],
        str(facts["epoch"] or "-"),
        _transports(facts),
        ", ".join(f"{peer} {state}" for peer, state in peers.items()) or "-",
        facts["model"] or "-",
        facts["config_hash"] or "-",
    ]


def _kv(facts: dict[str, Any]) -> str:
    """Return how full the pool is; beside it that of layers with a window, where they have one."""
    from pdctl.health import kv_share

    if facts["kv_share"] is None:
        return "-"
    share = f"{facts['kv_share'] * 100:.0f}"
    window: dict[str, int] = facts["window_pages"] or {}
    total = sum(window.values())
    return f"{share} ({kv_share(window, total) * 100:.0f} window)" if total else share


def _transports(facts: dict[str, Any]) -> str:
    """Return what carries the bytes to each decode; before the first, what could."""
    wires: dict[str, dict[str, Any]] = facts["wires"] or {}
    pairs = [f"{peer} {wire['transport']}" for peer, wire in wires.items() if wire["transport"]]
    return ", ".join(pairs) or facts["transport"] or "-"

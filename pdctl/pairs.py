"""A verified write over a pair: a canary room that both legs serve, as pd-lb would order it.

It goes the whole way of a request: registration, handshake, pages over the wire, the metadata row.
The prompt is new each time, so no cache answers for the wire. The tokens must be those that decode
makes when it computes the same prompt by itself: a wrong byte in the pages would show there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from daemons.cluster.load import phone_book_of
from daemons.cluster.model import Cluster
from daemons.protocol.ids import ROOM_LIMIT
from daemons.protocol.story import Wire, WorkerStatus
from pdctl.client import Refused, Unreachable, get_json, post_json, together
from pdctl.finding import Check, Status
from pdctl.places import Place
from pdctl.render import amount, rate
from pdctl.survey import get_as

PROMPT_TOKENS = 512  # as many as the model and the pools take
OUTPUT_TOKENS = 4
CANARY_S = 30.0
LEAST_ID, IDS = 3, 90  # ids that every vocabulary has


def pair_name(prefill: Place, decode: Place) -> str:
    """Return the name of a pair's check."""
    return f"pair-{prefill.instance}-{decode.instance}"


def sing(cluster: Cluster, prefill: Place, decode: Place) -> Check:
    """Let one room go from a prefill to a decode, and look at what came."""
    pair = (prefill.instance, decode.instance)
    try:
        body = _order(prefill, decode)
        before = _written(prefill, decode)
        room = secrets.randbelow(ROOM_LIMIT - 1) + 1
        meeting = _meeting(cluster, prefill, room)
        legs = together(
            {
                place.instance: _posting(place, body | meeting | {"cache_salt": f"canary {room}"})
                for place in (prefill, decode)
            }
        )
        for instance in (decode.instance, prefill.instance):
            if isinstance(said := legs[instance], Exception):
                raise said
        after = _written(prefill, decode)
        alone = _alone(decode, body, room)
    except (Unreachable, Refused) as trouble:
        hint = f"pdctl events --kind failed; pdctl logs {prefill.instance} and {decode.instance}"
        return Check(pair_name(prefill, decode), Status.FAIL, str(trouble), hint, pair)
    return _judged(pair, legs[decode.instance], alone, before, after)


def matrix(found: Sequence[Check]) -> tuple[list[str], list[list[str]]]:
    """Return the decodes that were written to, and a row per prefill with the speed to each."""
    cells = {check.pair: check for check in found if check.pair is not None}
    prefills = list(dict.fromkeys(prefill for prefill, _ in cells))
    decodes = list(dict.fromkeys(decode for _, decode in cells))
    rows = [
        [prefill, *(_cell(cells.get((prefill, decode))) for decode in decodes)]
        for prefill in prefills
    ]
    return decodes, rows


def _cell(check: Check | None) -> str:
    if check is None:
        return "-"
    return rate(check.bytes_per_s) if check.status is Status.OK else check.status.value


def _order(prefill: Place, decode: Place) -> dict[str, Any]:
    """Return a body with a prompt that both take, and that nobody has seen."""
    infos = [get_json(f"{place.url}/server_info", token=place.token) for place in (prefill, decode)]
    limits = [PROMPT_TOKENS]
    for info in infos:
        if info.get("context_length"):
            limits.append(int(info["context_length"]) - OUTPUT_TOKENS - 1)
        if info.get("max_total_num_tokens"):
            limits.append(int(info["max_total_num_tokens"]) // 4)
    tokens = max(1, min(limits))
    return {
        "input_ids": [LEAST_ID + secrets.randbelow(IDS) for _ in range(tokens)],
        "sampling_params": {
            "max_new_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        },
    }


def _meeting(cluster: Cluster, prefill: Place, room: int) -> dict[str, Any]:
    host, port = phone_book_of(cluster)
    return {
        "bootstrap_host": host,
        "bootstrap_port": port,
        "bootstrap_room": room,
        "bootstrap_instance": prefill.instance,
    }


def _posting(place: Place, body: dict[str, Any]) -> Callable[[], Any]:
    url = f"{place.url}/generate"
    return lambda: post_json(url, body, token=place.token, timeout_s=CANARY_S)


def _alone(decode: Place, body: dict[str, Any], room: int) -> Any:
    """Return what decode says of the prompt by itself, None where its settings forbid that."""
    own = {"local_prefill": True, "cache_salt": f"canary {room} alone"}
    try:
        return _posting(decode, body | own)()
    except Refused as refused:
        if refused.status == 400:
            return None
        raise


def _written(prefill: Place, decode: Place) -> Wire:
    """Return what a prefill has written to a decode so far; nothing where it does not tell."""
    try:
        return get_as(prefill, "/status", WorkerStatus).wires.get(decode.instance, Wire())
    except (Unreachable, Refused):
        return Wire()


def _judged(pair: tuple[str, str], paired: Any, alone: Any, before: Wire, after: Wire) -> Check:
    name = f"pair-{pair[0]}-{pair[1]}"
    size, took_s = after.bytes - before.bytes, after.writing.sum_s - before.writing.sum_s
    speed = size / took_s if took_s > 0 else None
    by = f" by {after.transport}" if after.transport else ""
    value = f"{amount(size)}{by} in {took_s * 1000:.1f} ms, {rate(speed)}"
    if alone is None:
        value = f"written, {value}; not compared: local_prefill is off"
        return Check(name, Status.OK, value, "", pair, speed)
    if _tokens(paired) != _tokens(alone):
        hint = "pages arrive changed: take the pair out (pdctl drain), pdctl support-bundle"
        value = f"other tokens than decode alone; {value}"
        return Check(name, Status.FAIL, value, hint, pair, speed)
    return Check(name, Status.OK, f"verified, {value}", "", pair, speed)


def _tokens(said: Any) -> Any:
    return said.get("output_ids") or said.get("text") if isinstance(said, dict) else said

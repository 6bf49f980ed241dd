"""Checks from here to every other daemon: does it answer, how late is its clock, what file has it.

A daemon's clock is compared by the time in its answer, which lies between question and answer;
what is shown can be wrong by half of that.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import msgspec

from daemons.cluster.load import BOOTSTRAP_NAME
from daemons.protocol.story import WorkerStatus
from daemons.protocol.topology import RankRoute
from pdctl.client import Refused, Unreachable, call, get_json
from pdctl.finding import Check, Status
from pdctl.places import WORKERS, Place
from pdctl.survey import get_as

SKEW_S = 0.05  # traces of a room are mixed up by more
SKEW_BAD_S = 2.0
CONNECT_S = 2.0
RANK0 = "prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"


def check_reach(place: Place) -> Check:
    """Does its HTTP face answer?"""
    name = f"reach-{place.instance}"
    if not place.url:
        return Check(name, Status.WARN, "not in the phone book", f"pdctl up on {place.host}")
    try:
        answer = call("GET", f"{place.url}/health")
    except Unreachable as trouble:
        hint = f"is it up on {place.host}, is a firewall between? pdctl status"
        return Check(name, Status.FAIL, str(trouble), hint)
    value = f"{place.where} answers in {answer.took_s * 1000:.1f} ms"
    if answer.status != 200:
        hint = f"pdctl logs {place.instance}"
        return Check(name, Status.WARN, f"{value}, /health says {answer.status}", hint)
    return Check(name, Status.OK, value)


def check_inbox(place: Place, book: Place) -> Check:
    """Can the rank's inbox, where peers speak to it, be connected to from here?"""
    name = f"inbox-{place.instance}"
    try:
        said = get_json(f"{book.url}/route?instance={place.instance}&{RANK0}", token=book.token)
        route = msgspec.convert(said, RankRoute)
    except (Unreachable, Refused, msgspec.ValidationError) as trouble:
        return Check(name, Status.WARN, str(trouble), f"pdctl logs {place.instance}")
    where = f"{route.rank_ip}:{route.rank_port}"
    began = time.monotonic()
    try:
        socket.create_connection((route.rank_ip, route.rank_port), CONNECT_S).close()
    except OSError as error:
        hint = "the data port: firewall, or advertise/bind of another network card"
        return Check(name, Status.FAIL, f"{where}: {error.strerror or error}", hint)
    took_s = time.monotonic() - began
    return Check(name, Status.OK, f"{where} connects in {took_s * 1000:.1f} ms")


def check_clock(place: Place) -> Check:
    """How far is its clock from ours?"""
    name = f"clock-{place.instance}"
    path = "/events" if place.instance == BOOTSTRAP_NAME else "/rooms"
    before_s = time.time()
    try:
        said = get_json(f"{place.url}{path}", token=place.token)
        now_s = float(said["now_s"])
    except (Unreachable, Refused, KeyError, TypeError, ValueError) as trouble:
        return Check(name, Status.WARN, f"it does not tell its time: {trouble}", "pdctl status")
    after_s = time.time()
    skew_s = now_s - (before_s + after_s) / 2
    value = f"{skew_s * 1000:+.1f} ms (±{(after_s - before_s) * 500:.1f})"
    if abs(skew_s) - (after_s - before_s) / 2 <= SKEW_S:
        return Check(name, Status.OK, value)
    status = Status.FAIL if abs(skew_s) > SKEW_BAD_S else Status.WARN
    return Check(name, status, value, "chronyc tracking, or timedatectl set-ntp true")


def check_file(place: Place, file_hash: str) -> Check:
    """Does it run on the file that we have?"""
    name = f"file-{place.instance}"
    try:
        theirs = get_as(place, "/status", WorkerStatus).config_hash
    except (Unreachable, Refused) as trouble:
        return Check(name, Status.WARN, str(trouble), "pdctl status")
    if theirs in ("", file_hash):
        return Check(name, Status.OK, theirs or "it does not tell")
    value = f"it runs on {theirs}, this file is {file_hash}"
    return Check(name, Status.WARN, value, "pdctl config push, then pdctl restart --rolling")


def names(known: dict[str, Place]) -> tuple[str, ...]:
    """Return the names of all checks of :func:`check_all`."""
    found = []
    for name, place in known.items():
        found += [f"reach-{name}", f"clock-{name}"]
        if place.role in WORKERS:
            found += [f"inbox-{name}", f"file-{name}"]
    return tuple(found)


def check_all(known: dict[str, Place], file_hash: str) -> Iterator[Check]:
    """Check every daemon; of one that does not answer nothing more is asked."""
    for place in known.values():
        reached = check_reach(place)
        yield reached
        if reached.status is Status.FAIL or not place.url:
            continue
        yield check_clock(place)
        if place.role in WORKERS:
            yield check_inbox(place, known[BOOTSTRAP_NAME])
            yield check_file(place, file_hash)

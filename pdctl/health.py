"""One word for the whole cluster, with its reasons.

ERR: a request cannot be served. WARN: it can, but somebody should look. Every reason is one line
that names who and what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from daemons.cluster.load import LB_NAME
from daemons.protocol.story import WorkerStatus
from daemons.protocol.topology import Role, State, differences
from pdctl.places import WORKERS
from pdctl.survey import Survey

KV_FULL = 0.97  # share of pages in use that is worth a word


class Level(StrEnum):
    """As on the first line of ``pdctl status``."""

    OK = "HEALTH_OK"
    WARN = "HEALTH_WARN"
    ERR = "HEALTH_ERR"


STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.ERR: "bold red"}


@dataclass(frozen=True, slots=True)
class Health:
    """The level and why; no reasons when all is well."""

    level: Level
    reasons: tuple[str, ...]
    unreachable: bool  # the cluster does not answer at all

    @property
    def line(self) -> str:
        """The first line of the home screen."""
        return (
            f"{self.level.value}  {'; '.join(self.reasons)}" if self.reasons else self.level.value
        )


def health_of(survey: Survey, file_hash: str = "") -> Health:
    """Return the health of what was seen; ``file_hash`` is that of the file that we look with."""
    errors = list(_errors(survey))
    warnings = [*_warnings(survey), *_drift(survey, file_hash)]
    level = Level.ERR if errors else Level.WARN if warnings else Level.OK
    silent = bool(survey.phone_book_trouble) and not survey.lb_health[0] and not survey.statuses
    return Health(level, (*errors, *warnings), silent)


def state_of(survey: Survey, name: str) -> str:
    """Return the state of a daemon in one word: a State, or ``silent`` or ``absent``."""
    place = survey.places[name]
    if place.role is Role.BOOTSTRAP:
        return "silent" if survey.phone_book_trouble else State.READY.value
    if place.role is Role.LB:
        return _lb_state(survey, name)
    if name in survey.statuses:
        return survey.statuses[name].state
    if name in survey.instances:
        state = survey.instances[name].state
        return state.value if state is State.LOST else "silent"
    return "absent"


def _lb_state(survey: Survey, name: str) -> str:
    """Return pd-lb's state; one that runs well but has no pair is ``not-ready``."""
    status = survey.lb_health[0]
    said = survey.statuses[name].state if name in survey.statuses else State.READY.value
    if status == 200 or (status and said != State.READY):
        return said
    return "not-ready" if status else "silent"


def _errors(survey: Survey) -> Iterator[str]:
    if survey.phone_book_trouble:
        yield f"the phone book is silent ({survey.phone_book_trouble})"
    status, words = survey.lb_health
    if status == 0:
        yield f"{LB_NAME} is silent ({words})"
    elif status != 200:
        yield f"{LB_NAME} is not ready ({words or status})"
    for role in WORKERS:
        names = [name for name, place in survey.places.items() if place.role is role]
        if not any(state_of(survey, name) == State.READY for name in names):
            yield f"no {role.value} is ready"


def _warnings(survey: Survey) -> Iterator[str]:
    workers = [name for name, place in survey.places.items() if place.role in WORKERS]
    for name in workers:
        state = state_of(survey, name)
        if state == State.DRAINING:
            yield f"{name} draining ({_left(survey.statuses[name])})"
        elif state == "absent":
            if not survey.phone_book_trouble:
                yield f"{name} is not in the phone book"
        elif state != State.READY:
            yield f"{name} is {state}" + (
                f" ({survey.troubles[name]})" if name in survey.troubles else ""
            )
    yield from _pools(survey)
    yield from _disagreements(survey)


def _left(said: WorkerStatus) -> str:
    """Return what a draining worker waits for, and until when if it stops by itself."""
    rooms = sum(said.rooms.values())
    words = "1 room left" if rooms == 1 else f"{rooms} rooms left"
    if said.drain_left_s is None:  # an operator drains it: whoever waits has the deadline
        return words
    return f"{words}, {said.drain_left_s:.0f} s to its deadline"


def _pools(survey: Survey) -> Iterator[str]:
    for name, status in survey.statuses.items():
        if status.chaos:
            yield f"{name} has faults put in on purpose: {', '.join(status.chaos)}"
        if status.pages_total and kv_share(status.pages, status.pages_total) > KV_FULL:
            yield f"{name} has almost no KV page free"
        if status.pages.get("quarantined"):
            yield f"{name} has {status.pages['quarantined']} pages in quarantine"
        window = status.window_pages
        if kv_share(window, sum(window.values())) > KV_FULL:
            yield f"{name} has almost no window page free"
        if window.get("quarantined"):  # alone, where decode had the prompt's other pages already
            yield f"{name} has {window['quarantined']} window pages in quarantine"
        bad = sorted(peer for peer, state in status.peers.items() if _is_bad(state))
        if bad:
            yield f"{name} does not hear {', '.join(bad)}"


def _is_bad(peer_state: str) -> bool:
    """Whether a daemon's word about a peer is one of trouble (its first word is the state)."""
    return peer_state.split()[:1] in (["suspect"], ["dead"], ["struck"])


def _disagreements(survey: Survey) -> Iterator[str]:
    versions = {info.version for info in survey.instances.values() if info.version}
    if len(versions) > 1:
        yield f"several versions run: {', '.join(sorted(versions))}"
    prints = [(n, i.fingerprint) for n, i in survey.instances.items() if i.fingerprint is not None]
    for name, fingerprint in prints[1:]:
        first, reference = prints[0]
        differing = differences(reference, fingerprint)
        if differing:
            text = differing[0].replace("ours", first).replace("theirs", name)
            yield f"{first} and {name} cannot pair ({text})"


def _drift(survey: Survey, file_hash: str) -> Iterator[str]:
    """Daemons that run on another cluster file than ours, or than each other's."""
    hashes = {
        name: status.config_hash for name, status in survey.statuses.items() if status.config_hash
    }
    ours = file_hash or next(iter(hashes.values()), "")
    others = [name for name, theirs in hashes.items() if theirs != ours]
    if not others:
        return
    told = ", ".join(f"{name} on {hashes[name]}" for name in others)
    if file_hash:
        yield f"another cluster file than ours ({file_hash}) is in use: {told}"
    else:
        yield f"daemons run on different cluster files: {told}"


def kv_share(pages: dict[str, int], total: int) -> float:
    """Return the share of pages that are neither free nor merely cached."""
    return 1 - (pages.get("free", 0) + pages.get("cached", 0)) / total if total else 0.0

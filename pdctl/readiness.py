"""Are the daemons of this host up yet? Asked again and again by ``pdctl up``.

A worker is up when the phone book lists it as ready and its ``/health`` is 200. pd-lb is up when
its ``/health`` is, which needs a pair; where no pair can be here, that it answers is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.cluster.load import BOOTSTRAP_NAME
from daemons.cluster.model import Cluster
from daemons.protocol.topology import Role, State
from pdctl.client import call, message_of, together
from pdctl.places import WORKERS, Place, places, with_phone_book
from pdctl.survey import phone_book

PROBE_S = 2.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who is not up yet, and why, as far as it says."""

    reasons: dict[str, str]

    @property
    def is_over(self) -> bool:
        """Whether everybody is up."""
        return not self.reasons


def waiting(cluster: Cluster, instances: Sequence[str]) -> Waiting:
    """Return which of ``instances`` (this host's) are not up yet."""
    known = places(cluster)
    listed, trouble = phone_book(known[BOOTSTRAP_NAME])
    states = {info.instance: info.state for info in listed}
    known = with_phone_book(known, listed)
    reasons: dict[str, str] = {}
    asked: dict[str, Place] = {}
    for name in instances:
        place = known[name]
        if place.role is Role.BOOTSTRAP:
            if trouble:
                reasons[name] = trouble
        elif place.role in WORKERS and states.get(name) is not State.READY:
            state = states.get(name)
            reasons[name] = trouble or (state.value if state else "not in the phone book yet")
        elif place.url:
            asked[name] = place
        else:
            reasons[name] = "port not known yet"
    workers = [name for name, place in known.items() if place.role in WORKERS]
    whole = bool(workers) and set(workers) <= set(instances)
    answers = together({name: _asking(place.url) for name, place in asked.items()})
    for name, said in answers.items():
        if isinstance(said, tuple):
            status, words = said
            if status != 200 and (whole or asked[name].role is not Role.LB):
                reasons[name] = words or f"/health says {status}"
        else:
            reasons[name] = str(said)
    return Waiting(reasons)


def _asking(url: str) -> Callable[[], tuple[int, str]]:
    def ask() -> tuple[int, str]:
        answer = call("GET", f"{url}/health", timeout_s=PROBE_S)
        return answer.status, message_of(answer.body)

    return ask

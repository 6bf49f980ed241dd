"""Questions to the phone book on behalf of ranks, which speak no HTTP themselves.

Few at a time, each with a deadline, off the way of everything else; the same question asked
again while it is open is the same question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import LookUp, RouteFailed, RouteFound, ToRank
from daemons.protocol.topology import Shape, Topology
from daemons.runtime.phonebook import PhoneBook, PhoneBookError, Trouble

AT_ONCE = 8
WAITING_LIMIT = 256  # more open questions are answered "no" at once
LOOK_UP_S = 2.0
STAGE = "lookup"

CAUSES = {
    Trouble.UNREACHABLE: Cause.BOOTSTRAP_UNREACHABLE,
    Trouble.UNKNOWN: Cause.BOOTSTRAP_UNKNOWN,
    Trouble.REFUSED: Cause.BOOTSTRAP_UNKNOWN,
}


class LookUps:
    """Open questions, by the rank that asked and the instance it asked for."""

    def __init__(self, book: PhoneBook, tell_rank: Callable[[int, ToRank], None]) -> None:
        self._book = book
        self._tell_rank = tell_rank
        self._open: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    def ask(self, rank: int, question: LookUp) -> None:
        """Take a rank's question; the answer goes to it as RouteFound or RouteFailed."""
        key = (rank, question.instance)
        if key in self._open:
            return
        if len(self._open) >= WAITING_LIMIT:
            detail = f"{len(self._open)} questions to the phone book are open"
            self._tell_rank(rank, _no(question.instance, Cause.BOOTSTRAP_UNREACHABLE, detail))
            return
        self._open[key] = asyncio.create_task(self._answer(rank, question.instance))

    async def close(self) -> None:
        """Give up all open questions."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, rank: int, instance: str) -> None:
        answers: list[ToRank] = []
        try:
            async with self._slots, asyncio.timeout(LOOK_UP_S):
                answers.extend(await self._routes(instance))
        except PhoneBookError as error:
            answers.append(_no(instance, CAUSES[error.trouble], error.text))
        except TimeoutError:
            detail = f"no answer in {LOOK_UP_S:g} s"
            answers.append(_no(instance, Cause.BOOTSTRAP_UNREACHABLE, detail))
        finally:
            del self._open[rank, instance]
        for answer in answers:
            self._tell_rank(rank, answer)

    async def _routes(self, instance: str) -> list[RouteFound]:
        topology = await self._book.topology(instance)
        return [
            await self._route(topology, place, number)
            for number, place in enumerate(places(topology.shape))
        ]

    async def _route(self, topology: Topology, place: dict[str, int], number: int) -> RouteFound:
        route = await self._book.route(topology.instance, **place)
        if route.epoch != topology.epoch:
            text = f"{topology.instance} restarted meanwhile ({topology.epoch}, {route.epoch})"
            raise PhoneBookError(Trouble.UNKNOWN, text)
        return RouteFound(
            topology.instance,
            number,
            topology.epoch,
            route.rank_ip,
            route.rank_port,
            topology.fingerprint,
        )


def _no(instance: str, cause: Cause, detail: str) -> RouteFailed:
    return RouteFailed(instance, Failure(cause, STAGE, instance, detail))


def places(shape: Shape) -> list[dict[str, int]]:
    """Return each rank's coordinates, by rank number: the tensor-parallel one counts fastest."""
    return [
        {"pp_rank": pp, "dp_rank": dp, "cp_rank": cp, "tp_rank": tp}
        for pp in range(shape.pp_size)
        for dp in range(shape.attn_dp_size)
        for cp in range(shape.attn_cp_size)
        for tp in range(shape.attn_tp_size)
    ]

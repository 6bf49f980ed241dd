"""A whole cluster in one thread and virtual time, from one seed.

The same seed gives the same run. Faults happen until they are over; then rooms over every pair
must succeed, and at last nothing may be left of any room.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from daemons.decode.config import DecodeConfig
from daemons.decode.scheduler import Scheduler as DecodeCore
from daemons.engine.config import EngineConfig
from daemons.kv.window import Windows, window_pages_needed
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.prefill.config import PrefillConfig
from daemons.prefill.decodes import Decodes
from daemons.prefill.scheduler import Scheduler as PrefillCore
from daemons.protocol.handshake import KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.topology import Fingerprint
from daemons.transfer.config import TransferConfig
from tests.sim import faults
from tests.sim.front import Front
from tests.sim.invariants import Violation, check_idle
from tests.sim.memory import Memory
from tests.sim.network import Address, Network
from tests.sim.phonebook import PhoneBook
from tests.sim.plan import TOKENS_LIMIT, Plan
from tests.sim.process import Core, Process

REST_S = 10.0  # after the last fault, until the canaries
LIMIT_S = 120.0  # after the canaries, until all must be over
CALM_LIMIT_S = 400.0  # there nobody gives up, and one room may wait for all others
EVENTS_LIMIT = 200_000
STILL_S = {True: 5.0, False: 15.0}  # by calm: so long nothing moves, and no deadline explains it


class World:
    """Everything there is."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self.rng = Random(f"world {plan.seed}")
        self.now = 0.0
        self.faulty = not plan.calm
        self.trace: list[str] | None = [] if trace else None
        self.events = 0
        self.seen: Counter[str] = Counter()  # what happened, to know that it does
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entered = 0
        self._last_s: dict[object, float] = {}
        self._resting = False
        self._moved: object = None  # what could be seen when something last moved
        self._moved_s = 0.0
        self.prefill_names = [f"p{i}" for i in range(plan.prefills)]
        self.decode_names = [f"d{i}" for i in range(plan.decodes)]
        self.instances = [*self.prefill_names, *self.decode_names]
        self.fingerprint = Fingerprint("toy", "fp32", plan.page_size, 1, 1, 1)
        self.regions = (KvRegion(4096, 100, 0, 0, 0), KvRegion(1 << 30, 100, 1, 0, 0))
        self.unlike = {name for name in self.prefill_names if self.rng.random() < plan.unlike}
        self.network = Network(self)
        self.book = PhoneBook(self)
        self.front = Front(self)
        self.current: dict[str, Process] = {}
        self.lives: dict[PeerId, Process] = {}
        self._started = 0

    # --- time ---

    def at(self, when_s: float, do: Callable[..., None], *args: object) -> None:
        """Do something at a time."""
        self._entered += 1
        heapq.heappush(self._heap, (max(when_s, self.now), self._entered, do, args))

    def after(self, delay_s: float, do: Callable[..., None], *args: object) -> None:
        """Do something after a while."""
        self.at(self.now + delay_s, do, *args)

    def after_in_order(self, way: object, delay_s: float, process: Process, event: object) -> None:
        """Deliver an event, not before those that took the same way earlier."""
        due_s = max(self.now + delay_s, self._last_s.get(way, 0.0))
        self._last_s[way] = due_s
        self.at(due_s, process.deliver, event)

    def tick_s(self) -> float:
        """Return how long a loop sleeps at most."""
        return self.plan.timers.tombstone_s / 4 if self._resting else self.plan.tick_s

    def note(self, process: Process, what: object) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f} {process.me} {what}")

    # --- processes ---

    def alive(self) -> list[Process]:
        """Return the processes that run (or are frozen) now."""
        return [process for process in self.current.values() if process.alive]

    def start(self, name: str) -> None:
        """Begin a new life of an instance."""
        self._started += 1
        before = self.current.get(name)
        same = before is not None and self.plan.same_port
        port = before.address[1] if before and same else 10_000 + self._started
        address = (f"{name}.host", port)
        me = PeerId(name, 1_000 + self._started)
        core, memory = self._core(me, address)
        process = Process(self, me, address, core, memory, skew_s=100.0 * self._started)
        self.current[name] = process
        self.lives[me] = process
        self.network.listeners[address] = process
        self.book.register(process)
        self.after(self.rng.random() * self.plan.tick_s, process.tick)

    def kill(self, process: Process) -> None:
        """End a life as by SIGKILL."""
        if process.frozen:
            process.frozen = False  # what lies in its sockets is lost with it
        process.alive = False
        del self.network.listeners[process.address]
        process.lanes.die()
        if not self.plan.silent_death:
            self.network.lose_connections(process)
        self.front.lost(process)

    def _core(self, me: PeerId, address: Address) -> tuple[Core, Memory]:
        plan = self.plan
        engine = EngineConfig(
            page_size=plan.page_size,
            batch_tokens=plan.batch_tokens,
            chunk_tokens=plan.chunk_tokens,
            batch_rooms=plan.batch_rooms,
            steps_ahead=plan.steps_ahead,
        )
        if me.instance in self.prefill_names:
            chunk = min(plan.chunk_tokens, plan.batch_tokens)
            window = self._pool(plan.prefill_window_rooms, chunk)
            memory = Memory(plan.page_size, plan.prefill_pages, plan.prefill_rows, window.pages)
            prefill = PrefillConfig(
                rows=plan.prefill_rows,
                engine=engine,
                timers=plan.timers,
                max_rooms=plan.max_rooms,
                max_orphans=plan.max_orphans,
                prefix_cache=plan.prefix_cache,
                transfer=TransferConfig(grain=plan.grain, checksum=plan.checksum),
            )
            decodes = Decodes(self.fingerprint_of(me.instance), self.regions, window=window)
            core = PrefillCore(me, prefill, decodes, plan.prefill_pages)
            core.tombs.limit = plan.max_tombs
            return core, memory
        window = self._pool(plan.decode_window_rooms, plan.chunk_tokens)
        memory = Memory(plan.page_size, plan.decode_pages, plan.decode_rows, window.pages)
        decode = DecodeConfig(
            rows=plan.decode_rows,
            engine=engine,
            timers=plan.timers,
            max_rooms=plan.max_rooms,
            retract_tokens=plan.host_pages * plan.page_size,
            prefix_cache=plan.prefix_cache,
            transfer=TransferConfig(checksum=plan.checksum),
        )
        buffers = self._buffers(me, address, window.pages)
        return DecodeCore(me, decode, buffers, plan.decode_pages, window), memory

    def _pool(self, rooms: int, chunk_tokens: int) -> WindowPool:
        """Return a window pool for so many rooms of the longest text, none without windows."""
        plan = self.plan
        if plan.window is None:
            return NO_POOL
        windows = Windows(plan.page_size, (None, plan.window))
        each = window_pages_needed(plan.window, chunk_tokens, plan.page_size)
        longest = -(-TOKENS_LIMIT // plan.page_size)
        return WindowPool(windows, rooms * min(each, longest))

    def fingerprint_of(self, name: str) -> Fingerprint:
        """Return what an instance really is."""
        if name not in self.unlike:
            return self.fingerprint
        return msgspec.structs.replace(self.fingerprint, model="another")

    def _buffers(self, me: PeerId, address: Address, window_pages: int) -> RegisterBuffers:
        plan = self.plan
        return RegisterBuffers(
            me,
            1,
            *address,
            session=f"session of {me}",
            fingerprint=self.fingerprint,
            pages=plan.decode_pages,
            regions=self.regions,
            rows_address=8192,
            row_bytes=ROW_BYTES,
            rows=plan.decode_rows,
            window_pages=window_pages,
        )

    # --- the run ---

    def run(self) -> None:
        """Live from the first room to the last, then be idle."""
        plan = self.plan
        for name in self.instances:
            self.start(name)
        self.front.plan_rooms()
        self._watch()
        end_s = plan.span_s + 6.0
        faults.squeeze(self, Random(f"retractions {plan.seed}"), end_s)
        if not plan.calm:
            faults.schedule(self, Random(f"faults {plan.seed}"), end_s)
        self._run_until(end_s)
        self._run_until(self._heal(end_s))
        self.front.canaries()
        limit_s = self.now + (CALM_LIMIT_S if plan.calm else LIMIT_S)
        if plan.max_tombs < len(self.front.rooms):  # one may have to wait for another's to go
            limit_s += len(self.front.rooms) * plan.timers.tombstone_s
        while not self._quiet():
            if self.now > limit_s:
                raise Violation(f"not quiet in time: {self._unquiet()}")
            self._run_until(self.now + 1.0)
        self._rest()

    def _heal(self, end_s: float) -> float:
        """Stop all faults and return when the canaries may come."""
        self.faulty = False
        for pair in list(self.network.parted):
            self.network.heal(pair)
        for process in self.alive():
            if process.frozen:
                process.thaw()
        return end_s + (0.0 if self.plan.calm else REST_S)

    def _watch(self) -> None:
        """Find standstills: rooms are here, nothing is wrong, and yet nothing moves.

        Deadlines hide a wait cycle by ending its rooms. Where none is near, something must move.
        """
        plan = self.plan
        self.after(1.0, self._watch)
        seen = [sorted(self.seen.items())] + [
            [process.core.recorder.counts(), process.core.pages.counts(), process.core.counters]
            for process in self.alive()
        ]
        told = repr(seen)
        busy = any(process.core.busy for process in self.alive())
        if told != self._moved or self.faulty or not busy:
            self._moved, self._moved_s = told, self.now
        sure = plan.calm or plan.max_tombs > 10  # else memory waits for tombstones to go
        if sure and self.now - self._moved_s >= STILL_S[plan.calm]:
            raise Violation(f"standstill since {self._moved_s:.1f} s: {self._unquiet()}")

    def _quiet(self) -> bool:
        return not any(process.core.busy for process in self.alive()) and all(
            leg.end for room in self.front.rooms.values() for leg in room.legs
        )

    def _unquiet(self) -> list[str]:
        busy = [str(process.me) for process in self.alive() if process.core.busy]
        legs = [leg for room in self.front.rooms.values() for leg in room.legs if not leg.end]
        return busy + [f"{leg.instance} {leg.room.key}" for leg in legs]

    def _rest(self) -> None:
        """Let tombstones expire, with few ticks, and look at what is left."""
        self.front.check_end()
        self._run_until(self.now + 5.0)
        self._resting = True
        self._run_until(self.now + 1.0)
        said = self.network.said
        self._run_until(self.now + 2 * self.plan.timers.tombstone_s)
        if self.network.said != said:
            raise Violation(f"{self.network.said - said} messages were sent at rest")
        for process in self.alive():
            check_idle(process)
        self.front.check_end()

    def _run_until(self, when_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= when_s:
            self.now, _, do, args = heapq.heappop(heap)
            self.events += 1
            do(*args)
        if self.events > EVENTS_LIMIT:
            raise Violation(f"{self.events} events, and no end")
        self.now = when_s

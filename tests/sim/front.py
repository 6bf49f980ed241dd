"""Clients, the balancer and both fronts in one: submits legs, cancels, and checks every output.

The two legs of a room come in any order; sometimes one of them never does. A leg ends exactly
once, nothing follows, and a good end has exactly the text that the engine would make undisturbed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from daemons.kv.runs import pages_for
from daemons.kv.window import first_needed_page
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import Grammar, GrammarKind, Output, Sampling, Submit
from daemons.protocol.handshake import AbortAnswer, Destination, Message, Progress
from daemons.protocol.ids import RoomKey, room_hex
from daemons.protocol.status import FINAL, Status
from daemons.runtime.events import Cancelled, Finished, Submitted
from tests.sim.engine import text, token
from tests.sim.invariants import Violation
from tests.sim.lanes import PAGE_BYTES
from tests.sim.plan import TOKENS_LIMIT

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.world import World

PATIENCE_S = 1000.0
GRAMMAR = Grammar(GrammarKind.REGEX, "a*")  # of some rooms; what they say does not keep to it
CANARY_EVERY_S = 4.0
LOOK_S = 0.03


@dataclass(slots=True, eq=False)
class Leg:
    """One half of a room, as its front sees it."""

    instance: str
    room: Room
    process: Process | None = None  # the life that was asked; None: not yet
    tokens: list[int] = field(default_factory=list)
    end: str = ""  # "done", "stopped", "failed", "lost"; "" while it is open
    failure: Failure | None = None
    sealed: bool = False  # the core has ended it, nothing may follow
    closings: int = 0


@dataclass(slots=True, eq=False)
class Room:
    """One request of a client."""

    key: RoomKey
    submit: Submit
    must_succeed: bool
    legs: tuple[Leg, ...] = field(init=False)  # prefill, decode; or a decode alone
    stops_at: int = 0  # a stop string after so many tokens; 0: none


@dataclass(slots=True)
class Front:
    """All clients of a world."""

    world: World
    rooms: dict[RoomKey, Room] = field(default_factory=dict)
    prefixes: dict[RoomKey, int] = field(default_factory=dict)  # that decode told prefill
    _drawn: int = 0

    def plan_rooms(self) -> None:
        """Put all requests of the plan on the calendar."""
        plan, rng = self.world.plan, self.world.rng
        for _ in range(plan.rooms):
            at_s = rng.random() * plan.span_s
            prefill = rng.choice(self.world.prefill_names)
            decode = rng.choice(self.world.decode_names)
            if rng.random() < plan.local:
                prefill = decode
            room = self.draw(prefill, decode, must_succeed=plan.calm)
            gap_s = rng.random() * rng.choice((0.0, 0.1, 1.0))
            first, *others = room.legs if rng.random() < 0.5 else room.legs[::-1]
            self.world.at(at_s, self._submit, first)
            for second in others:
                if rng.random() >= plan.one_leg:
                    self.world.at(at_s + gap_s, self._submit, second)
                else:
                    second.end = "lost"
            if rng.random() < plan.cancel:
                room.must_succeed = False
                self._plan_cancel(room, at_s)

    def canaries(self) -> None:
        """Send a room over each pair; nothing is wrong any more, so they must succeed.

        One after the other, since each pair is to be tried and not the queues.
        """
        # Without a place for tombstones memory stays in quarantine for longer.
        sure = self.world.plan.max_tombs > 10
        at_s = self.world.now
        for decode in self.world.decode_names:
            for prefill in (*self.world.prefill_names, decode):
                like = prefill not in self.world.unlike
                room = self.draw(prefill, decode, must_succeed=sure and like)
                for leg in room.legs:
                    self.world.at(at_s, self._submit, leg)
                at_s += CANARY_EVERY_S

    def draw(self, prefill: str, decode: str, *, must_succeed: bool) -> Room:
        """Make a room, with lengths around the edges."""
        plan, rng = self.world.plan, self.world.rng
        self._drawn += 1
        key = RoomKey(self._drawn * 1009 + 5, rng.choice((1, 1, 1, 2)))
        edges = (1, plan.page_size, plan.chunk_tokens, 2 * plan.chunk_tokens, rng.randint(1, 24))
        length = max(1, min(rng.choice(edges) + rng.choice((-1, 0, 1)), 28))
        most = rng.choice((1, 2, 5, 12))
        if plan.long_texts:
            length, most = rng.randint(1, 8), rng.choice((12, 20, 30))
        limit = min(plan.decode_pages, plan.prefill_pages) * plan.page_size
        if must_succeed:
            length, most = min(length, 8, max(1, limit // 2)), min(most, max(1, limit // 2))
            most = most if plan.calm else min(most, 5)
        elif rng.random() < plan.too_long:
            length, most = rng.choice(((0, 2), (TOKENS_LIMIT * 4, 2)))
        ending = (token(key, rng.randint(0, most)),) if rng.random() < 0.4 else ()
        ignore = rng.random() < 0.2
        judged = rng.choice((None, None, 0))
        sampling = Sampling(
            max_tokens=most,
            eos_token_ids=ending,
            ignore_eos=ignore,
            prompt_logprobs=judged,
            grammar=GRAMMAR if key.room % 4 == 0 else None,
        )
        prompt = self._prompt(length, 8 if must_succeed or plan.long_texts else 28, limit)
        impatient = not must_succeed and rng.random() < plan.impatient
        timeout_s = rng.random() * 5 if impatient else PATIENCE_S
        submit = Submit(
            key.room,
            key.attempt,
            prompt,
            sampling,
            prefill,
            timeout_s or 1.0,
            priority=rng.choice((0, 0, 0, 1, 100, -100)),
            cache_salt=rng.choice(("", "", "a")),
        )
        room = Room(key, submit, must_succeed)
        room.legs = _legs(room, prefill, decode)
        room.stops_at = rng.randint(1, 6) if rng.random() < plan.finish else 0
        self.rooms[key] = room
        return room

    def _prompt(self, length: int, most: int, limit: int) -> tuple[int, ...]:
        """Return ``length`` tokens of its own, or one that goes on where another text is.

        Some share only a part of a page, or all of an earlier prompt and its answer.
        """
        plan, rng = self.world.plan, self.world.rng
        fresh = tuple(rng.randint(0, 999) for _ in range(length))
        if not self.rooms or not 0 < length <= 28 or rng.random() >= plan.alike:
            return fresh
        earlier = rng.choice(list(self.rooms.values()))
        said = (*earlier.submit.prompt, *text(earlier.key, earlier.submit.sampling))
        keep = rng.choice((len(said), len(earlier.submit.prompt), rng.randint(0, len(said))))
        long = (*said[:keep], *fresh[: rng.randint(0, 4)]) or fresh
        return long[: min(most, max(1, limit // 2))]

    def lost(self, process: Process) -> None:
        """A worker is gone with all its legs."""
        for room in self.rooms.values():
            for leg in room.legs:
                if leg.process is process and not leg.end:
                    self._end(leg, "lost")

    def output(self, process: Process, output: Output) -> None:
        """Take what a rank tells."""
        key = RoomKey(output.room, output.attempt)
        leg = self._leg(process, key)
        if leg is None or leg.sealed or leg.end not in ("", "stopped"):
            raise Violation(f"{process.me} tells {output} of a leg that is over: {leg}")
        if key in process.spoilt and (output.tokens or output.finish):
            raise Violation(f"{process.me} tells tokens of {key}, a page of which was spoilt")
        if output.failure and output.failure.cause is Cause.TRANSFER_CHECKSUM:
            if key not in process.spoilt:
                raise Violation(f"{process.me} refuses {key}, which is as it was sent")
            self.world.seen["legs failed by a checksum"] += 1
        if len(leg.room.legs) == 1 and not leg.tokens and output.tokens:
            self.world.seen["prompts computed by a decode"] += 1
            self._check_prompt(leg.room, output)
        leg.tokens += [out.id for out in output.tokens]
        if output.cached_tokens:
            self._check_cached(leg, output.cached_tokens)
        if output.failure and (output.tokens or output.finish):
            raise Violation(f"{process.me} tells tokens with a failure: {output}")
        if output.failure:
            leg.failure, leg.sealed = output.failure, True
            self._end(leg, leg.end or "failed")
        elif output.finish:
            leg.sealed = True
            self._check_text(leg, whole=True)
            self._end(leg, leg.end or "done")
        else:
            self._check_text(leg, whole=False)
            self._maybe_stop(leg)

    def finish_handled(self, process: Process, key: RoomKey) -> None:
        """The core has heard of the stop string; the leg is over."""
        leg = self._leg(process, key)
        if leg is not None and leg.end == "stopped":
            leg.sealed = True

    def closed(self, process: Process, facts: dict[str, object]) -> None:
        """Take a closing line: one per room, and with the cause that was told first."""
        for key, room in self.rooms.items():
            if (room_hex(key.room), key.attempt) == (facts["room"], facts["attempt"]):
                leg = next(leg for leg in room.legs if leg.process is process)
                leg.closings += 1
                told = leg.failure.cause.value if leg.failure else None
                if leg.closings > 1 or facts.get("cause") != told:
                    raise Violation(f"{process.me} closes {key} with {facts}, told was {told}")
                if told is None and len(room.legs) == 2 and leg is room.legs[0]:
                    self._check_bytes(room, facts["sent_bytes"])
                return
        raise Violation(f"{process.me} closes a room that nobody submitted: {facts}")

    def said(self, process: Process, message: Message) -> None:
        """Remember the rooms for which a prefill said that it writes no more."""
        match message:
            case Destination():
                self.prefixes[RoomKey(message.room, message.attempt)] = message.prefix_tokens
                self.world.seen["destinations with a prefix"] += message.prefix_tokens > 0
                return
            case AbortAnswer():
                pass
            case Progress() if message.status in FINAL:
                if (message.status is Status.FAILED) is not (message.failure is not None):
                    raise Violation(f"{process.me} says {message}")
            case _:
                return
        before = process.said_over.setdefault((message.room, message.attempt), message.fence)
        if before != message.fence:
            raise Violation(f"{process.me} said {before}, now {message}")

    def check_end(self) -> None:
        """Every leg is over; where nothing could go wrong, well."""
        for room in self.rooms.values():
            for leg in room.legs:
                if not leg.end:
                    raise Violation(f"leg {leg.instance} of {room.key} never ended")
                if room.must_succeed and leg.end not in ("done", "stopped"):
                    raise Violation(f"leg {leg.instance} of {room.key} {leg.end}: {leg.failure}")
                died = leg.process is not None and not leg.process.alive  # maybe in a step ahead
                if leg.end == "done" and leg.closings != 1 and not died:
                    raise Violation(f"leg {leg.instance} of {room.key}: {leg.closings} closings")

    def _check_cached(self, leg: Leg, cached_tokens: int) -> None:
        """What is said to have been cached was not computed, and nothing else was left out."""
        writer, size = leg.room.legs[0].process, self.world.plan.page_size
        started = writer.engine.starts.get(leg.room.key) if writer else None
        if cached_tokens != started or cached_tokens % size:
            raise Violation(f"{leg.room.key}: {cached_tokens} tokens cached, begun at {started}")
        self.world.seen["outputs with cached tokens"] += 1

    def _check_bytes(self, room: Room, sent_bytes: object) -> None:
        """Of a prompt all travels that decode has not told to have, and nothing else."""
        plan, tokens = self.world.plan, len(room.submit.prompt)
        size, whole = plan.page_size, pages_for(tokens, plan.page_size)
        pages = whole - self.prefixes[room.key] // size
        if plan.window is not None:  # and of the layer with a window what is seen later
            pages += whole - min(whole, first_needed_page(tokens, plan.window, size))
        if sent_bytes != pages * PAGE_BYTES:
            raise Violation(f"{room.key}: {sent_bytes} bytes were sent for {pages} pages")

    def _leg(self, process: Process, key: RoomKey) -> Leg | None:
        room = self.rooms.get(key)
        if room is None:
            return None
        return next((leg for leg in room.legs if leg.process is process), None)

    def _submit(self, leg: Leg) -> None:
        process = self.world.current.get(leg.instance)
        if leg.end:
            return
        if process is None or not process.alive:
            self._end(leg, "lost")
            return
        leg.process = process
        process.deliver(Submitted(leg.room.submit))
        if self.world.rng.random() < self.world.plan.twice:
            self.world.after(self.world.rng.random(), self._submit_twice, leg)

    def _submit_twice(self, leg: Leg) -> None:
        # What waits in front of a frozen rank may end the leg before this comes to it.
        if not leg.end and leg.process is not None and not leg.process.frozen:
            leg.process.deliver(Submitted(leg.room.submit))

    def _plan_cancel(self, room: Room, at_s: float) -> None:
        rng = self.world.rng
        after_s = rng.random() * rng.choice((0.05, 0.5, 3.0))
        both = rng.random() < 0.5
        legs = room.legs if both else (rng.choice(room.legs),)
        in_transfer = rng.random() < 0.5
        for leg in legs:
            cause = Failure(Cause.CLIENT_CANCELLED, "client", "", "")
            begin_s = at_s + after_s + rng.random() * 0.1
            if in_transfer:
                self.world.at(begin_s, self._cancel_in_transfer, leg, cause, begin_s + 5.0)
            else:
                self.world.at(begin_s, self._cancel, leg, cause)

    def _cancel_in_transfer(self, leg: Leg, failure: Failure, latest_s: float) -> None:
        """Cancel while bytes of the room are on their way, or at the latest then."""
        writer = leg.room.legs[0].process
        moving = writer is not None and writer.lanes.moves(leg.room.key)
        if moving or self.world.now >= latest_s:
            self._cancel(leg, failure)
        else:
            self.world.after(LOOK_S, self._cancel_in_transfer, leg, failure, latest_s)

    def _cancel(self, leg: Leg, failure: Failure) -> None:
        """Cancels reach the rank that has the leg, as often as anybody likes."""
        if leg.process is not None and leg.end != "stopped":
            leg.process.deliver(Cancelled(leg.room.key, failure))
            if not leg.end and not leg.process.frozen:
                raise Violation(f"a cancel did not end leg {leg.instance} of {leg.room.key}")
        elif not leg.end and leg.process is None:
            self._end(leg, "lost")  # the front has not submitted it yet, and will not
        if self.world.plan.calm and leg.end in ("failed", "lost"):
            self.world.after(self.world.plan.gone_s, self._check_gone, leg.room)

    def _check_gone(self, room: Room) -> None:
        """Some time after a cancel nothing is left of a room, anywhere."""
        for leg in room.legs:
            if leg.process is None or leg.end in ("done", "stopped"):
                continue
            core, key = leg.process.core, room.key
            held = [core.pages.owner(page) for page in range(core.pages.size)]
            read = any(key in core.pages.readers(page) for page in range(core.pages.size))
            if core.recorder.stage(key) or read or any(holder == key for _, holder in held):
                raise Violation(f"{room.key} is still on {leg.instance} after its cancel")
        self.world.seen["cancelled rooms gone in time"] += 1

    def _end(self, leg: Leg, end: str) -> None:
        leg.end = end
        self.world.seen[f"legs {end}"] += 1
        if end not in ("failed", "lost"):
            return
        twin = next((other for other in leg.room.legs if other is not leg), None)
        if twin is not None and self.world.rng.random() < self.world.plan.twin:
            failure = Failure(Cause.LB_TWIN_FAILED, "lb", leg.instance, "the other leg failed")
            delay_s = self.world.rng.random() * 0.2
            self.world.after(delay_s, self._cancel, twin, failure)
        if self.world.faulty and self.world.rng.random() < self.world.plan.again:
            self.world.after(self.world.rng.random(), self._try_again, leg.room)

    def _try_again(self, room: Room) -> None:
        """The same room with the next attempt, maybe over another pair."""
        rng, submit = self.world.rng, room.submit
        key = RoomKey(room.key.room, room.key.attempt + 1)
        if key in self.rooms or not self.world.faulty:
            return
        prefill, decode = rng.choice(self.world.prefill_names), rng.choice(self.world.decode_names)
        prefill = decode if rng.random() < self.world.plan.local else prefill
        submit = msgspec.structs.replace(submit, attempt=key.attempt, prefill=prefill)
        again = Room(key, submit, must_succeed=False)
        again.legs = _legs(again, prefill, decode)
        self.rooms[key] = again
        for leg in again.legs:
            self.world.after(rng.random() * 0.2, self._submit, leg)

    def _maybe_stop(self, leg: Leg) -> None:
        room = leg.room
        if leg.end or leg is not room.legs[-1] or not room.stops_at:
            return
        if len(leg.tokens) >= room.stops_at:
            leg.end = "stopped"
            assert leg.process is not None
            delay_s = self.world.rng.random() * 0.05
            self.world.after(delay_s, leg.process.deliver, Finished(room.key))

    def _check_prompt(self, room: Room, output: Output) -> None:
        """What was asked of a prompt that a decode computed comes with the first token."""
        wanted = room.submit.sampling.prompt_logprobs is not None
        right = room.submit.prompt if wanted else None
        judged = output.prompt_logprobs
        if (None if judged is None else tuple(out.id for out in judged)) != right:
            raise Violation(f"{room.key} is told {judged} of its prompt, should be {right}")

    def _check_text(self, leg: Leg, *, whole: bool) -> None:
        room = leg.room
        right = text(room.key, room.submit.sampling)
        if leg is not room.legs[-1]:
            right = right[:1]
        told = right if whole else right[: len(leg.tokens)]
        if leg.tokens != told:
            raise Violation(f"{room.key} on {leg.instance}: {leg.tokens}, should be {right}")


def _legs(room: Room, prefill: str, decode: str) -> tuple[Leg, ...]:
    if prefill == decode:
        return (Leg(decode, room),)
    return Leg(prefill, room), Leg(decode, room)

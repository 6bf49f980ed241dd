"""A try that is served without tasks, for as long as all goes well.

- Both workers are asked on connections that are open already; what they say is passed on by
  callbacks. The same events pass the same seam as in :mod:`daemons.lb.dispatch`.
- Anything else - no open connection, a bad status, an error event, a broken connection, a client
  that leaves or does not read, a deadline - is handed to a task, which goes on from there: what was
  not passed on is put back into its connection. So there is one place that judges failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from daemons.lb.asked import Asked
from daemons.lb.client import Client
from daemons.lb.dispatch import DECODE, PREFILL
from daemons.lb.leg import AFTER_DONE_S, EVENT_END, Answer, Leg, is_stream, passed_back
from daemons.lb.open_requests import OpenRequests
from daemons.lb.serving import Serving
from daemons.lb.trial import Trial
from daemons.lb.wire.call import Call
from daemons.lb.wire.connection import Server
from daemons.lb.wire.line import Line
from daemons.lb.wire.pool import Pool

TICK_S = 0.25  # how exactly deadlines are held
REST_BYTES_LIMIT = 1 << 20  # of an event that is not complete
ERROR, END_MARK, DONE_EVENT = b'{"error"', b"[DONE]", b"data: [DONE]"

# by request, try, its end of the client, and why it fails if that is known
GoOn = Callable[[Asked, Trial, Client, BaseException | None], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Expressway:
    """What all such tries share."""

    serving: Serving
    open: OpenRequests
    pool: Pool
    read: Callable[[Call], Asked]  # raises what a client is refused for
    go_on: GoOn
    running: set[Express] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None

    def start(self, call: Call, server: Server) -> Express | None:
        """Begin to serve a request; None: a task does it, ours or the usual one."""
        serving = self.serving
        if serving.gate.waiting or call.flow.is_paused:
            return None
        try:
            asked = self.read(call)
        except Exception:  # noqa: BLE001 - the usual task meets it again, and tells the client
            return None
        client = Client(call)
        if asked.order.wants_prompt_logprobs or (trial := serving.begun(asked, client)) is None:
            return None
        for leg in trial.legs:
            if (line := self.pool.kept(leg.worker.host, leg.worker.port)) is not None:
                leg.ask(line)
        lines = [leg.line for leg in trial.legs if leg.line is not None]
        if len(lines) < 2:  # one opens a connection, or decode is alone
            server.serve_by(call, self.go_on(asked, trial, client, None))
            return None
        prefill, decode = trial.legs
        express = Express(self, asked, trial, client, server, prefill, decode, *lines)
        trial.express = express
        self.running.add(express)
        self.open.enter(express)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return express

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for one in list(self.running):
            one.look(now_s)
        self._timer = loop.call_later(TICK_S, self._tick) if self.running else None


class Express:
    """One try: two connections that speak, and a client that listens."""

    __slots__ = (
        "_asked", "_body", "_client", "_deadline_s", "_decode", "_decode_line", "_exchange",
        "_is_over", "_loop", "_prefill", "_prefill_line", "_rests", "_server", "_trial", "_way",
    )  # fmt: skip

    def __init__(
        self,
        way: Expressway,
        asked: Asked,
        trial: Trial,
        client: Client,
        server: Server,
        prefill: Leg,
        decode: Leg,
        prefill_line: Line,
        decode_line: Line,
    ) -> None:
        self._way = way
        self._asked = asked
        self._trial = trial
        self._client = client
        self._server = server
        self._prefill, self._decode = prefill, decode
        self._prefill_line, self._decode_line = prefill_line, decode_line
        self._exchange = trial.exchange
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + trial.exchange.total_s
        self._rests = {DECODE: b"", PREFILL: b""}  # of events that are not complete
        self._body: list[bytes] = []
        self._is_over = False
        prefill_line.heard = self._prefill_heard
        decode_line.heard = self._decode_heard

    def go_on(self, why: BaseException | None = None) -> None:
        """Let a task go on from here, or fail where it is known why."""
        if self._is_over:
            return
        exchange = self._exchange
        exchange.total_s = max(0.0, self._deadline_s - self._loop.time())
        self._decode_line.put_back(b"".join(self._body) or self._rests[DECODE])
        if not exchange.prefill_is_done:
            self._prefill_line.put_back(self._rests[PREFILL])
        self._leave(is_over=False)
        serving = self._way.go_on(self._asked, self._trial, self._client, why)
        self._server.serve_by(self._client.call, serving)

    def look(self, now_s: float) -> None:
        """Hold the deadlines: those of an answer by a task, for it knows what to say."""
        if now_s >= self._deadline_s:
            self.go_on()
            return
        legs = [(self._decode, self._decode_line)]
        if not self._exchange.prefill_is_done:
            legs.append((self._prefill, self._prefill_line))
        for leg, line in legs:
            since_s = now_s if leg.heard_s is None else leg.heard_s
            if leg.has_all and now_s - since_s >= AFTER_DONE_S:
                line.abort()
            elif not leg.has_all and now_s - since_s >= leg.idle_s / 2:
                self.go_on()

    def _leave(self, *, is_over: bool) -> None:
        self._is_over = True
        self._trial.express = None
        self._decode_line.heard = None
        if not self._exchange.prefill_is_done:
            self._prefill_line.heard = None
        self._way.running.discard(self)
        self._way.open.leave(self, is_over=is_over)

    # Prefill.

    def _prefill_heard(self) -> None:
        try:
            self._hear_prefill(self._prefill, self._prefill_line)
        except Exception as error:  # noqa: BLE001 - its task tells the client
            self.go_on(error)

    def _hear_prefill(self, leg: Leg, line: Line) -> None:
        if not _is_well(leg, line):
            self.go_on()
            return
        if not line.status:
            return
        data = line.taken()
        if is_stream(line):
            if data and not leg.has_all and (events := self._events(leg, PREFILL, data)):
                self._exchange.is_here(PREFILL)
                if (seam := self._exchange.seam) is not None:
                    passed = [seam.from_prefill(one) for one in events.split(EVENT_END)]
                    self._put(_joined([event for event in passed if event is not None]))
            if self._is_over:
                return
            if line.has_ended and not leg.has_all:
                self.go_on()
                return
        if line.has_ended or line.is_lost:
            self._exchange.prefill_is_done = True
            line.heard = None
            leg.drop()
            self._trial.prefill_over("done")

    # Decode.

    def _decode_heard(self) -> None:
        try:
            self._hear_decode(self._decode, self._decode_line)
        except Exception as error:
            if self._is_over:
                raise
            self.go_on(error)

    def _decode_goes_on(self) -> None:
        """Pass on what is nothing but complete events; most of a stream is."""
        line = self._decode_line
        if line.has_ended or line.is_lost or self._rests[DECODE]:
            self._decode_heard()
            return
        data = line.taken()
        if data[-2:] != EVENT_END or ERROR in data or END_MARK in data:
            line.put_back(data)
            self._decode_heard()
            return
        self._decode.heard_s = self._loop.time()
        call = self._client.call
        call.put(data)
        if call.flow.is_paused:
            self.go_on()

    def _hear_decode(self, leg: Leg, line: Line) -> None:
        if not _is_well(leg, line):
            self.go_on()
            return
        if not line.status:
            return
        data = line.taken()
        if not is_stream(line):
            if data:
                self._body.append(data)
            if line.has_ended:
                self._finish(b"".join(self._body))
            return
        if data and not leg.has_all and (events := self._events(leg, DECODE, data)):
            exchange = self._exchange
            exchange.is_here(DECODE)
            if exchange.seam is not None and not exchange.seam.is_over:
                self._put(_joined(exchange.seamless(events.split(EVENT_END))))
            else:
                self._put(events + EVENT_END)
                line.heard = None if self._is_over else self._decode_goes_on
        if self._is_over:
            return
        if leg.has_all and (line.has_ended or line.is_lost):
            self._finish(b"")
        elif line.has_ended:
            self.go_on()

    def _events(self, leg: Leg, which: str, data: bytes) -> bytes:
        """Return complete events without the last one's end, b"" where a task shall judge them."""
        if rest := self._rests[which]:
            data = rest + data
        events, _, rest = data.rpartition(EVENT_END)
        self._rests[which] = rest
        if ERROR in events or len(rest) > REST_BYTES_LIMIT:
            self._rests[which] = data
            self.go_on()
            return b""
        if END_MARK in events:
            if not _ends_with_mark(events):
                self._rests[which] = data
                self.go_on()
                return b""
            leg.has_all = True
        if events:
            leg.begun, leg.heard_s = True, self._loop.time()
        return events

    def _put(self, events: bytes) -> None:
        """Send to the client."""
        if not events:
            return
        if not self._exchange.began:
            self._client.put_begin()
            self._exchange.began = True
        self._client.put(events)
        if self._client.call.flow.is_paused:
            self.go_on()

    def _finish(self, body: bytes) -> None:
        """Decode has ended well."""
        line, client, trial = self._decode_line, self._client, self._trial
        answer = Answer(line.status, body, passed_back(line))
        self._leave(is_over=True)
        self._decode.drop()
        if not self._exchange.prefill_is_done:
            trial.let_prefill_linger()
        trial.ended_well()
        client.put_end(answer)
        client.telling.ended(answer.status, None)
        self._way.serving.limits.leave(self._asked.who, self._asked.order.rooms)
        self._server.served(client.call)


def _is_well(leg: Leg, line: Line) -> bool:
    """Say whether a connection gives a good answer so far."""
    return line.status < 300 and (leg.has_all or not line.is_broken)


def _ends_with_mark(events: bytes) -> bool:
    """Say whether the end mark is the last event, and nowhere else."""
    is_last = events == DONE_EVENT or events.endswith(EVENT_END + DONE_EVENT)
    return is_last and events.count(END_MARK) == 1


def _joined(events: list[bytes]) -> bytes:
    return EVENT_END.join(events) + EVENT_END if events else b""

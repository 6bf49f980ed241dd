"""Stories of several daemons about one room become one waterfall.

Pure: times are wall clocks of the daemons, made relative to the first of them. Where clocks of
hosts differ the picture is skewed, and says so when an effect comes before its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from daemons.protocol.causes import Cause, Failure
from daemons.protocol.story import Line, RoomRow, Story

SHORT_ROLE = {"lb": "lb", "prefill": "p", "decode": "d"}
ROLE_ORDER = ("lb", "prefill", "decode")
CHUNK_COMPUTED = "chunk computed"  # prefill's notes
CHUNK_SENT = "chunk sent"
# Spans that wait for others' spans, or that come after the first token.
ENCLOSING = frozenset({"lb.dispatch", "lb.stream", "d.transfer", "d.running"})
# What a daemon says when another one's failure reached it: never the first cause.
CONSEQUENCES = frozenset({Cause.LB_TWIN_FAILED, Cause.PEER_ABORTED})


@dataclass(frozen=True, slots=True)
class Span:
    """A bar: one stage of one daemon, times in seconds after the room's begin."""

    name: str  # p.forward
    instance: str
    begin_s: float
    end_s: float
    note: str = ""
    is_open: bool = False  # still in it

    @property
    def length_s(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Leg:
    """How the room ended at one daemon."""

    instance: str
    role: str
    at_s: float
    stage: str  # the last one it was in
    because: str
    failure: Failure | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One attempt of a room, told by everybody at once."""

    room: int
    attempt: int
    outcome: str  # ok | failed | open
    prefill: str  # "": decode computed the prompt by itself
    decode: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    total_s: float
    ttft_s: float | None
    spans: tuple[Span, ...]
    legs: tuple[Leg, ...]
    first_cause: Failure | None
    first_leg: str  # instance that failed first
    remarks: tuple[str, ...]

    @property
    def longest(self) -> Span | None:
        """The span that the time until the first token is mostly made of."""
        bars = [span for span in self.spans if span.name not in ENCLOSING]
        return max(bars, key=lambda span: span.length_s, default=None)


def waterfall(stories: Sequence[Story], now_s: float) -> Waterfall:
    """Return the waterfall of the stories of one room and attempt.

    Raises:
        ValueError: no story has a line, or they are of several rooms or attempts.
    """
    told = sorted((s for s in stories if s.lines), key=lambda s: ROLE_ORDER.index(s.role))
    keys = {(story.room, story.attempt) for story in told}
    if len(keys) != 1:
        raise ValueError(f"stories of {len(keys)} attempts")
    origin = min(story.lines[0].at_s for story in told)
    legs = tuple(_leg(story, origin) for story in told)
    spans = sorted(
        (span for story in told for span in _spans(story, origin, now_s)),
        key=lambda span: (span.begin_s, span.end_s),
    )
    first = first_failed(legs)
    longest = max(told, key=lambda story: story.output_tokens)
    return Waterfall(
        room=told[0].room,
        attempt=told[0].attempt,
        outcome="failed" if first else "open" if any(leg.is_open for leg in legs) else "ok",
        prefill=_instance(told, "prefill"),
        decode=_instance(told, "decode"),
        prompt_tokens=max(story.prompt_tokens for story in told),
        cached_tokens=max(story.cached_tokens for story in told),
        output_tokens=longest.output_tokens,
        total_s=max(span.end_s for span in spans) if spans else 0.0,
        ttft_s=_ttft(told, origin),
        spans=tuple(spans),
        legs=legs,
        first_cause=first.failure if first else None,
        first_leg=first.instance if first else "",
        remarks=tuple(_remarks(told)),
    )


def first_failed(legs: Iterable[Leg]) -> Leg | None:
    """Return the leg whose failure came first.

    One that only follows from another comes last; one that tells a stage of its own comes before
    one that was told of another's, whatever their clocks say.
    """
    failed = [leg for leg in legs if leg.failure is not None]
    return min(failed, key=_blame, default=None)


def _blame(leg: Leg) -> tuple[bool, bool, float]:
    assert leg.failure is not None
    return leg.failure.cause in CONSEQUENCES, leg.failure.stage != leg.stage, leg.at_s


def attempts(stories: Iterable[Story]) -> dict[int, list[Story]]:
    """Return stories by attempt, the first one first."""
    found: dict[int, list[Story]] = {}
    for story in sorted(stories, key=lambda story: story.attempt):
        found.setdefault(story.attempt, []).append(story)
    return found


def _spans(story: Story, origin: float, now_s: float) -> Iterator[Span]:
    short = SHORT_ROLE[story.role]
    changes = [line for line in story.lines if line.entered != line.left]
    for line, after in zip(changes, [*changes[1:], None], strict=True):
        if not line.entered:
            continue
        end = after.at_s if after else now_s
        notes = [n for n in story.lines if n.left == n.entered and line.at_s <= n.at_s <= end]
        notes = [note for note in notes if note.entered == line.entered]
        yield Span(
            f"{short}.{line.entered}",
            story.instance,
            line.at_s - origin,
            max(end - origin, line.at_s - origin),
            story.facts.get("why", "") if line.entered == "dispatch" else _summary(notes),
            after is None,
        )
    yield from _kv_write(story, origin)


def _summary(notes: Sequence[Line]) -> str:
    """Return notes as ``what ×how often``; bytes have a bar of their own."""
    counts: dict[str, int] = {}
    for note in notes:
        if note.because != CHUNK_SENT:
            counts[note.because] = counts.get(note.because, 0) + 1
    if CHUNK_COMPUTED in counts:
        chunks = counts.pop(CHUNK_COMPUTED)
        counts[f"{chunks} chunk{'s' if chunks > 1 else ''}"] = 1
    return ", ".join(f"{what} ×{n}" if n > 1 else what for what, n in counts.items())


def _kv_write(story: Story, origin: float) -> Iterator[Span]:
    """The bytes on the wire: from the first computed chunk to the last one that was sent."""
    sent = [line for line in story.lines if line.because == CHUNK_SENT and line.bytes]
    if not sent:
        return
    computed = [line.at_s for line in story.lines if line.because == CHUNK_COMPUTED]
    begin = min([*computed, sent[0].at_s])
    end = sent[-1].at_s
    total = sum(line.bytes for line in sent)
    forward_end = next((ln.at_s for ln in story.lines if ln.left == "forward" != ln.entered), end)
    behind = sum(line.bytes for line in sent if line.at_s < forward_end) / total
    behind = float(story.facts.get("overlap_fraction", behind))  # to the layer
    yield Span(
        "kv.write",
        story.instance,
        begin - origin,
        end - origin,
        _wire(total, float(story.facts.get("wire_s", 0)), behind, story.facts.get("transport", "")),
    )


def _wire(total_bytes: int, took_s: float, behind: float, transport: str) -> str:
    """Say how fast the writes were; between two of them the wire waits for the forward."""
    from pdctl.render import amount, rate

    speed = f" at {rate(total_bytes / took_s)}" if took_s > 0 else ""
    by = f" by {transport}" if transport else ""
    return f"{amount(total_bytes)}{by}{speed}, {behind:.0%} behind the forward"


def _leg(story: Story, origin: float) -> Leg:
    last = story.lines[-1]
    stage = last.left if not last.entered else last.entered
    return Leg(
        story.instance,
        story.role,
        last.at_s - origin,
        stage,
        last.because,
        story.failure,
        story.open,
    )


def _instance(told: Sequence[Story], role: str) -> str:
    for story in told:
        if story.role == role:
            return story.instance
    if role == "prefill" and any(_is_alone(story) for story in told):
        return ""
    for story in told:  # its own story is lost, but the others name it
        if named := story.facts.get(role) or (story.peer if story.role != "lb" else ""):
            return named
    return "?"


def _is_alone(story: Story) -> bool:
    """Say whether a decode computed the prompt by itself."""
    return story.role == "decode" and any(line.entered == "forward" for line in story.lines)


def _ttft(told: Sequence[Story], origin: float) -> float | None:
    for role, stage in (("lb", "stream"), ("decode", "prebuilt")):
        for story in told:
            if story.role == role:
                for line in story.lines:
                    if line.entered == stage != line.left:
                        return line.at_s - origin
    return None


def _remarks(told: Sequence[Story]) -> Iterator[str]:
    roles = {story.role for story in told}
    for role in ROLE_ORDER:
        if role not in roles:
            yield f"no {role} knows this room (any more)"
    begins = {story.role: story.lines[0].at_s for story in told}
    if "lb" in begins:
        early = begins["lb"] - min(begins.values())
        if early > 0.0005:
            yield f"a worker began {early * 1000:.1f} ms before lb: their clocks differ"


@dataclass(frozen=True, slots=True)
class Summary:
    """One room in the list of rooms, all daemons together."""

    room: int
    attempt: int
    state: str  # open | done | failed
    stages: dict[str, str]  # instance -> stage, or done, failed
    age_s: float
    prompt_tokens: int
    output_tokens: int
    failure: Failure | None


def summaries(rows: dict[str, list[RoomRow]]) -> list[Summary]:
    """Return one summary per room and attempt: open ones first, then the youngest."""
    merged: dict[tuple[int, int], dict[str, RoomRow]] = {}
    for instance, told in rows.items():
        for row in told:
            merged.setdefault((row.room, row.attempt), {})[instance] = row
    found = [_summarised(*key, legs) for key, legs in merged.items()]
    return sorted(found, key=lambda one: (one.state != "open", one.age_s))


def _summarised(room: int, attempt: int, legs: dict[str, RoomRow]) -> Summary:
    rows = list(legs.values())
    failures = [row.failure for row in rows if row.failure is not None]
    stages = {instance: row.stage for instance, row in legs.items()}
    ended = all(stage in ("done", "failed") for stage in stages.values())
    return Summary(
        room,
        attempt,
        "failed" if failures else "done" if ended else "open",
        stages,
        max(row.age_s for row in rows),
        max(row.prompt_tokens for row in rows),
        max(row.output_tokens for row in rows),
        min(failures, key=_hearsay, default=None),
    )


def _hearsay(failure: Failure) -> int:
    """Return how far a leg's words are from the first cause.

    A worker whose HTTP request pd-lb cancels sees a client that left, whatever the cause was.
    """
    if failure.cause in CONSEQUENCES:
        return 2
    return 1 if failure.cause is Cause.CLIENT_DISCONNECTED else 0

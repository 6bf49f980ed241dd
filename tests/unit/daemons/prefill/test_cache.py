"""What of a prompt need not be computed again."""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.engine.config import EngineConfig
from daemons.engine.step import Begin, Run
from daemons.kv.ledger import Owner
from daemons.prefill.commands import WriteKV
from daemons.prefill.events import WriteDone
from daemons.prefill.scheduler import Scheduler
from daemons.protocol.generate import prompt_digest
from daemons.protocol.metadata import unpack
from daemons.runtime.events import Cancelled
from tests.support.cores import (
    CANCELLED,
    PAGE_SIZE,
    D,
    buffers,
    came,
    destination,
    done,
    key,
    of,
    prefill_core,
    submitted,
    told,
)


def paired(*, pages: int = 8, **more: object) -> Scheduler:
    """A core that computes up to 16 tokens of a room at once and remembers them."""
    engine = EngineConfig(page_size=PAGE_SIZE, chunk_tokens=16, batch_tokens=32)
    core = prefill_core(pages=pages, engine=engine, **{"prefix_cache": True} | more)  # type: ignore[arg-type]
    core.handle(came(buffers(D)), 0.0)
    return core


def ask(core: Scheduler, room: int, tokens: int, prefix: int = 0, **changes: Any) -> list[object]:
    """Submit a room, with a destination for all behind the prefix; its first commands."""
    asked = submitted(room, tokens, **changes)
    core.handle(asked, 0.0)
    pages = tuple(range(10, 10 - (-tokens // PAGE_SIZE) - prefix // PAGE_SIZE))
    where = destination(room, tokens, pages=pages, prefix_tokens=prefix)
    digest = prompt_digest(asked.submit.prompt)
    where = msgspec.structs.replace(where, prompt_digest=digest)
    return list(core.handle(came(where), 0.0))


def serve(core: Scheduler, room: int, tokens: int, **changes: Any) -> None:
    """Let a room come, be computed, and end."""
    writes = of(ask(core, room, tokens, **changes), WriteKV)
    writes += of(core.handle(done(room), 1.0), WriteKV)
    for write in writes:
        core.handle(WriteDone(key(room), 100 * len(write.source_pages)), 1.0)
    assert not core.busy


def test_a_prompt_is_computed_from_where_an_earlier_one_ended() -> None:
    core = paired()
    serve(core, 1, 10)
    assert core.pages.counts()[Owner.CACHED] == 2
    commands = ask(core, 2, 10)
    ((item,),) = (run.items for run in of(commands, Run))
    assert (item.tokens, item.start, item.pages[:2]) == ((9, 10), 8, (0, 1))


def test_what_is_cached_leaves_before_the_forward() -> None:
    core = paired()
    serve(core, 1, 10)
    commands = [type(c) for c in ask(core, 2, 10) if isinstance(c, Begin | WriteKV | Run)]
    assert commands == [Begin, WriteKV, Run]
    (write,) = of(core.handle(done(2), 1.0), WriteKV)
    assert len(write.source_pages) == 1, "the rest, with the row"


def test_what_decode_has_already_does_not_travel() -> None:
    core = paired()
    serve(core, 1, 10)
    assert of(ask(core, 2, 10, prefix=8), WriteKV) == []
    (write,) = of(core.handle(done(2), 1.0), WriteKV)
    assert (write.target_pages, len(write.source_pages)) == ((10,), 1)


def test_a_prompt_that_decode_has_whole_is_computed_and_only_the_row_travels() -> None:
    core = paired()
    ask(core, 1, 8, prefix=8)
    (write,) = of(core.handle(done(1), 1.0), WriteKV)
    assert (write.source_pages, write.target_pages) == ((), ())
    assert write.row is not None


def test_how_much_was_cached_is_told_to_the_client_to_decode_and_in_the_story() -> None:
    core = paired()
    serve(core, 1, 10)
    ask(core, 2, 10)
    commands = core.handle(done(2), 1.0)
    (last,) = of(commands, WriteKV)
    assert last.row is not None
    _, row = unpack(last.row, key(2))
    assert row is not None
    assert row.cached_tokens == 8
    (output,) = told(commands)
    assert output.cached_tokens == 8
    assert core.recorder.stories(2)[0].cached_tokens == 8
    assert (core.counters["cached_tokens"], core.counters["cache_lookups"]) == (8, 2)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    core = paired()
    serve(core, 1, 8)
    ((item,),) = (run.items for run in of(ask(core, 2, 8), Run))
    assert (item.start, item.samples) == (4, True)


def test_pages_that_are_sent_stay_until_the_write_has_ended() -> None:
    core = paired(pages=3)
    serve(core, 1, 10)
    ask(core, 2, 10)
    core.handle(done(2), 1.0)
    ask(core, 3, 12)
    assert core.pages.readers(0) == (key(2),)
    assert list(core.stages.waiting.rooms) == [key(3)]
    core.handle(WriteDone(key(2), 100), 1.0)
    core.handle(WriteDone(key(2), 100), 1.0)
    assert list(core.stages.waiting.begun) == [key(3)]
    assert core.pages.readers(0) == (key(3),)


def test_a_room_that_ends_before_its_prompt_is_computed_leaves_nothing() -> None:
    core = paired()
    ask(core, 1, 10)
    core.handle(Cancelled(key(1), CANCELLED), 0.5)
    core.handle(done(1), 1.0)
    assert core.pages.free == core.pages.size
    assert not core.busy


def test_a_cancelled_room_reads_no_more() -> None:
    core = paired()
    serve(core, 1, 10)
    ask(core, 2, 10)
    core.handle(Cancelled(key(2), CANCELLED), 0.5)
    core.handle(done(2), 1.0)
    assert core.pages.readers(0) == (key(2),), "its write has not ended"
    core.handle(WriteDone(key(2), 100), 1.0)
    assert core.pages.read == 0
    assert core.pages.available == core.pages.size


def test_cached_pages_go_when_others_are_wanted_and_count_as_credit() -> None:
    core = paired(pages=3)
    serve(core, 1, 10)
    assert core.credits["tokens"] == 3 * PAGE_SIZE
    serve(core, 2, 10, prompt=tuple(range(100, 110)))
    assert core.counters["cache_evictions"] == 2


def test_salts_do_not_meet() -> None:
    core = paired()
    serve(core, 1, 10, cache_salt="a")
    ((item,),) = (run.items for run in of(ask(core, 2, 10, cache_salt="b"), Run))
    assert item.start == 0


def test_without_a_cache_every_prompt_is_computed_whole() -> None:
    core = paired(prefix_cache=False)
    serve(core, 1, 10)
    ((item,),) = (run.items for run in of(ask(core, 2, 10), Run))
    assert item.start == 0
    assert core.pages.counts()[Owner.CACHED] == 0

"""Who waits for which room, and how each of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from daemons.front.metrics import Meter
from daemons.front.output import End, Order
from daemons.front.rooms import GRACE_S, Call, OpenRooms
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.generate import (
    Cancel,
    Finish,
    FinishReason,
    Output,
    Sampling,
    Submit,
    TokenOut,
    ToRank,
)
from daemons.protocol.ids import RoomKey
from daemons.runtime.http import Refusal
from tests.support.tiny_model import byte_tokenizer

BYTES = byte_tokenizer()
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


class Bench:
    """Open rooms whose rank is a list of what it was told."""

    def __init__(self) -> None:
        self.told: list[ToRank] = []
        self.meter = Meter()
        self.rooms = OpenRooms(self.told.append, self.meter)

    def call(self, *rooms: int, timeout_s: float = 60.0, rid: str = "r", **more: Any) -> Call:
        rids = [rid] if len(rooms) == 1 else [f"{rid}_{n}" for n in range(len(rooms))]
        orders = [
            Order(RoomKey(room, 1), (1,), Sampling(), "p0", one, **more)
            for room, one in zip(rooms, rids, strict=True)
        ]
        return Call(orders, self.rooms, BYTES, timeout_s)

    def bring(self, room: int, raw: bytes = b"", finish: FinishReason | None = None) -> None:
        self.rooms.deliver([Output(room, 1, tuple(TokenOut(byte) for byte in raw), finish)])

    def fail(self, room: int, cause: Cause) -> None:
        self.rooms.deliver([Output(room, 1, failure=Failure(cause, "transfer", "p0"))])

    def outcome(self, name: str) -> float:
        value = self.meter.registry.get_sample_value("pd_requests_total", {"outcome": name})
        return value or 0.0

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.told]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def read(call: Call) -> list[tuple[int, str, End | None]]:
    return [(n, piece.text, piece.end) async for n, piece in call]


def cancels(told: Sequence[ToRank]) -> dict[int, Cause]:
    return {m.room: m.failure.cause for m in told if isinstance(m, Cancel)}


async def test_a_call_brings_its_rooms_pieces_and_leaves_nothing_behind(bench: Bench) -> None:
    async with bench.call(7) as call:
        bench.bring(7, b"a")
        bench.bring(7, b"b", LENGTH)
        assert await read(call) == [(0, "a", None), (0, "b", End(LENGTH))]
    assert bench.kinds() == ["Submit"]
    assert len(bench.rooms) == 0
    assert bench.outcome("ok") == 1


async def test_rooms_of_a_batch_come_as_they_come(bench: Bench) -> None:
    async with bench.call(7, 8) as call:
        bench.bring(8, b"x", LENGTH)
        bench.bring(7, b"a", LENGTH)
        assert [(n, text) for n, text, _ in await read(call)] == [(1, "x"), (0, "a")]


async def test_a_reader_sleeps_until_something_comes(bench: Bench) -> None:
    async with bench.call(7) as call:
        reading = asyncio.create_task(read(call))
        await asyncio.sleep(0)
        assert not reading.done()
        bench.bring(7, b"a", LENGTH)
        assert await reading == [(0, "a", End(LENGTH))]


async def test_a_stop_string_is_told_to_the_rank_once(bench: Bench) -> None:
    async with bench.call(7, stops=("b",)) as call:
        bench.bring(7, b"ab")
        assert await read(call) == [(0, "a", End(STOP, "b"))]
    assert bench.told[1:] == [Finish(7, 1)]


async def test_a_stop_string_with_the_last_token_is_not_told(bench: Bench) -> None:
    async with bench.call(7, stops=("b",)) as call:
        bench.bring(7, b"ab", LENGTH)
        await read(call)
    assert bench.kinds() == ["Submit"]


async def test_outputs_after_a_stop_string_are_dropped(bench: Bench) -> None:
    async with bench.call(7, 8, stops=("b",)) as call:
        bench.bring(7, b"ab")
        bench.bring(7, b"cd")
        bench.bring(8, b"x", LENGTH)
        assert [text for _, text, _ in await read(call)] == ["a", "x"]


async def test_a_failure_of_a_rank_is_the_clients_error(bench: Bench) -> None:
    async with bench.call(7) as call:
        bench.fail(7, Cause.PEER_DIED)
        with pytest.raises(Refusal) as refusal:
            await read(call)
    assert refusal.value.status == 502
    assert refusal.value.room == 7
    assert bench.kinds() == ["Submit"]  # the rank knows
    assert bench.outcome("peer.died") == 1


async def test_the_first_failure_ends_the_whole_batch_and_cancels_the_rest(bench: Bench) -> None:
    async with bench.call(7, 8, 9) as call:
        bench.bring(8, b"x", LENGTH)
        bench.fail(7, Cause.PEER_DIED)
        bench.fail(9, Cause.ENGINE_FAILED)
        with pytest.raises(Refusal, match=r"peer\.died"):
            await read(call)
    assert cancels(bench.told) == {}  # 8 ended well, 9 by itself
    bench.told.clear()
    async with bench.call(7, 8, 9) as call:
        bench.fail(7, Cause.PEER_DIED)
        with pytest.raises(Refusal, match=r"peer\.died"):
            await read(call)
    assert cancels(bench.told) == {8: Cause.PEER_DIED, 9: Cause.PEER_DIED}
    assert len(bench.rooms) == 0


async def test_a_client_that_goes_away_cancels_its_rooms(bench: Bench) -> None:
    async def serve() -> None:
        async with bench.call(7, 8) as call:
            await read(call)

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    bench.bring(8, b"x", LENGTH)
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])
    assert cancels(bench.told) == {7: Cause.CLIENT_DISCONNECTED}
    assert bench.outcome("client.disconnected") == 1
    assert len(bench.rooms) == 0


async def test_a_cancel_wins_over_a_finish_that_was_not_read(bench: Bench) -> None:
    async with bench.call(7) as call:
        bench.bring(7, b"a", LENGTH)
        assert bench.rooms.abort("r") == 1
        with pytest.raises(Refusal) as refusal:
            await read(call)
    assert refusal.value.status == 499


async def test_an_abort_names_one_request_a_batch_or_all(bench: Bench) -> None:
    async with bench.call(1, rid="a") as one, bench.call(2, 3, rid="b") as two:
        assert bench.rooms.abort("x") == 0
        assert bench.rooms.abort("b") == 2
        with pytest.raises(Refusal):
            await read(two)
        assert bench.rooms.abort("abort_all") >= 1
        with pytest.raises(Refusal):
            await read(one)
    assert set(cancels(bench.told)) == {1, 2, 3}


async def test_a_room_of_a_batch_may_be_named_alone(bench: Bench) -> None:
    async with bench.call(2, 3, rid="b") as call:
        assert bench.rooms.abort("b_1") == 1
        with pytest.raises(Refusal) as refusal:
            await read(call)
    assert refusal.value.room == 3


async def test_a_room_that_is_open_is_refused_and_nothing_of_the_batch_is_opened(
    bench: Bench,
) -> None:
    async with bench.call(7):
        with pytest.raises(Refusal) as refusal:
            async with bench.call(6, 7):
                pass
        assert refusal.value.status == 409
        assert len(bench.rooms) == 1
        assert bench.kinds() == ["Submit"]


async def test_a_room_may_be_used_again_once_it_has_ended(bench: Bench) -> None:
    for _ in range(2):
        async with bench.call(7) as call:
            bench.bring(7, b"a", LENGTH)
            await read(call)


async def test_a_call_that_ends_late_does_not_drop_the_room_of_the_next(bench: Bench) -> None:
    async with bench.call(7) as first:
        bench.bring(7, b"a", LENGTH)
        await read(first)
        second = bench.call(7)
        await second.__aenter__()
    bench.bring(7, b"b", LENGTH)
    assert await read(second) == [(0, "b", End(LENGTH))]
    await second.__aexit__(None, None, None)


async def test_outputs_for_nobody_are_counted_and_dropped(bench: Bench) -> None:
    bench.bring(7, b"a")
    assert bench.meter.registry.get_sample_value("pd_late_outputs_total") == 1


async def test_a_rank_that_takes_no_requests_refuses_the_whole_batch(bench: Bench) -> None:
    def tell(message: ToRank) -> None:
        if isinstance(message, Submit) and message.room == 8:
            raise Refusal.of(Failure(Cause.QUEUE_FULL, "intake"))
        bench.told.append(message)

    bench.rooms.tell = tell
    with pytest.raises(Refusal) as refusal:
        async with bench.call(7, 8, 9):
            pass
    assert refusal.value.status == 503
    assert cancels(bench.told) == {7: Cause.QUEUE_FULL}
    assert len(bench.rooms) == 0


async def test_a_request_that_cannot_be_told_leaves_nothing_open(bench: Bench) -> None:
    def tell(message: ToRank) -> None:
        if isinstance(message, Submit):
            raise OverflowError("too big to tell")

    bench.rooms.tell = tell
    with pytest.raises(Refusal, match="too big to tell") as refusal:
        async with bench.call(7, 8):
            pass
    assert (refusal.value.room, refusal.value.status) == (7, 500)
    assert len(bench.rooms) == 0


async def test_a_silent_rank_is_waited_for_only_so_long(bench: Bench) -> None:
    async with bench.call(7, timeout_s=0.01 - GRACE_S) as call:
        with pytest.raises(Refusal) as refusal:
            await read(call)
    assert refusal.value.status == 504
    assert cancels(bench.told) == {7: Cause.TOTAL_TIMEOUT}


async def test_an_instance_that_goes_away_says_so_to_every_room_and_how_far_it_was(
    bench: Bench,
) -> None:
    async with bench.call(7) as begun, bench.call(8) as waiting:
        bench.bring(7, b"a")
        assert (await anext(begun))[1].text == "a"
        bench.rooms.fail_all(Cause.INSTANCE_STOPPING, "d0", "rank 0 was killed by SIGKILL")
        for call, stage in ((begun, "streaming"), (waiting, "submitted")):
            with pytest.raises(Refusal, match=f"in {stage} .d0.: rank 0 was killed by SIGKILL"):
                await read(call)


async def test_times_of_first_and_next_tokens_are_measured(bench: Bench) -> None:
    async with bench.call(7) as call:
        bench.bring(7, b"a")
        bench.bring(7, b"bc", LENGTH)
        await read(call)
    value = bench.meter.registry.get_sample_value
    assert value("pd_ttft_seconds_count") == 1
    assert value("pd_itl_seconds_count") == 2
    assert value("pd_e2e_seconds_count") == 1
    assert value("pd_output_tokens_total") == 3


async def test_a_storm_of_calls_that_end_in_every_way_leaves_nothing(bench: Bench) -> None:
    async def serve(room: int) -> None:
        async with bench.call(room, stops=("s",)) as call:
            async for _ in call:
                pass

    async def ended_by(room: int) -> None:
        match room % 4:
            case 0:
                bench.bring(room, b"a", LENGTH)
            case 1:
                bench.bring(room, b"s")
            case 2:
                bench.fail(room, Cause.PEER_DIED)

    tasks = [asyncio.create_task(serve(room)) for room in range(1, 101)]
    await asyncio.sleep(0)
    await asyncio.gather(*(ended_by(room) for room in range(1, 101)))
    for room, task in enumerate(tasks, 1):
        if room % 4 == 3:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(bench.rooms) == 0
    ended = {m.room for m in bench.told if isinstance(m, Finish | Cancel)}
    assert ended == {room for room in range(1, 101) if room % 4 in (1, 3)}

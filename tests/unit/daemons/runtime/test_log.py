from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from aiohttp.http_exceptions import BadHttpMessage

from daemons.runtime import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("aiohttp.server").filters.clear()
    structlog.reset_defaults()
    log._many = None


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_facts_and_the_names_of_the_process() -> None:
    out = io.StringIO()
    log.configure("p0", "prefill", stream=out)
    log.logger(epoch=7).info("room.ended", tokens=3)
    (line,) = lines(out)
    assert line["event"] == "room.ended"
    assert (line["instance"], line["role"]) == ("p0", "prefill")
    assert (line["epoch"], line["tokens"], line["level"]) == (7, 3, "info")
    assert str(line["timestamp"]).endswith("Z")
    assert list(line)[:5] == ["timestamp", "level", "instance", "role", "event"]


def test_an_event_of_many_is_the_same_line() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, write_through=True)
    log.configure("p0", "prefill", stream=out)
    log.logger().info("room.ended", tokens=3, failure=None)
    log.tell(log.logger(), "room.ended", {"tokens": 3, "failure": None})
    one, same = (json.loads(line) for line in raw.getvalue().splitlines())
    assert list(one) == list(same)
    assert one | {"timestamp": 0} == same | {"timestamp": 0}
    assert len(one["timestamp"]) == len(same["timestamp"])


async def test_events_of_many_go_out_at_the_end_of_a_turn_of_the_loop() -> None:
    raw = io.BytesIO()
    log.configure("p0", "prefill", stream=io.TextIOWrapper(raw, write_through=True))
    for n in range(3):
        log.tell(log.logger(), "room.ended", {"n": n})
    assert raw.getvalue() == b""
    await asyncio.sleep(0)
    assert [json.loads(line)["n"] for line in raw.getvalue().splitlines()] == [0, 1, 2]


def test_events_of_many_respect_terminal_and_level() -> None:
    for out, level in ((Terminal(), "info"), (io.StringIO(), "info"), (io.StringIO(), "warning")):
        log.configure("p0", "prefill", stream=out, level=level)
        log.tell(log.logger(), "room.ended", {"tokens": 3})
        assert ("room.ended" in out.getvalue()) is (level == "info")


def test_a_terminal_gets_columns_instead_of_json() -> None:
    out = Terminal()
    log.configure("p0", "prefill", stream=out)
    log.logger().info("room.ended", tokens=3)
    assert "room.ended" in out.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(out.getvalue())


def test_events_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    log.configure("p0", "prefill", level="warning", stream=out)
    log.logger().info("room.ended")
    log.logger().warning("peer.lost")
    assert [line["event"] for line in lines(out)] == ["peer.lost"]


def test_a_logger_made_before_configure_obeys_it() -> None:
    early = log.logger(lane=1)
    out = io.StringIO()
    log.configure("d0", "decode", stream=out)
    early.info("lane.began")
    assert lines(out)[0]["lane"] == 1


def test_what_a_library_logs_is_a_line_too_with_its_prose_under_text() -> None:
    out = io.StringIO()
    log.configure("p0", "prefill", stream=out)
    logging.getLogger("some.library").warning("a %s sentence", "whole")
    (line,) = lines(out)
    assert (line["event"], line["library"]) == ("library.said", "some.library")
    assert (line["text"], line["instance"]) == ("a whole sentence", "p0")


def test_an_exception_is_told_with_its_traceback_in_the_same_line() -> None:
    out = io.StringIO()
    log.configure("p0", "prefill", stream=out)
    try:
        raise RuntimeError("the reason")
    except RuntimeError:
        log.logger().exception("lane.broke")
    (line,) = lines(out)
    assert "RuntimeError: the reason" in str(line["exception"])


def test_bytes_that_are_not_http_cause_no_line() -> None:
    out = io.StringIO()
    log.configure("p0", "prefill", stream=out)
    server = logging.getLogger("aiohttp.server")
    try:
        raise BadHttpMessage("PRI * HTTP/2.0")
    except BadHttpMessage:
        server.exception("Error handling request")
    server.error("something else")
    assert [line["text"] for line in lines(out)] == ["something else"]

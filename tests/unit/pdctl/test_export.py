"""A waterfall for other tools."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import msgspec

from daemons.protocol.causes import Cause, Failure
from pdctl.export import exported
from pdctl.forms import Export
from pdctl.merge import waterfall
from tests.support.stories import DECODE, LB, PREFILL, ended

SEEN = waterfall([LB, PREFILL, DECODE], 200.0)


def test_perfetto_gets_a_process_per_daemon_and_a_bar_per_stage() -> None:
    document = json.loads(exported(SEEN, Export.PERFETTO))
    events = document["traceEvents"]
    processes = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
    assert processes == {"lb", "p0", "d0"}
    bars = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(bars) == {span.name for span in SEEN.spans}
    assert bars["p.forward"]["dur"] == 160_000.0  # microseconds
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in bars.values())


class Rows(HTMLParser):
    """Counts rows, and notes what would be loaded from elsewhere."""

    rows = 0
    loads: tuple[str, ...] = ()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        self.loads += tuple(name for name, _ in attrs if name in ("src", "href"))


def test_a_page_has_a_row_per_stage_and_loads_nothing() -> None:
    reader = Rows()
    reader.feed(exported(SEEN, Export.HTML))
    assert (reader.rows, reader.loads) == (len(SEEN.spans), ())


def test_what_a_peer_said_is_text_in_a_page() -> None:
    failure = Failure(Cause.PEER_DIED, "transfer", "p0", "<script>alert(1)</script>")
    failed = waterfall([LB, PREFILL, ended(msgspec.structs.replace(DECODE), failure, 100.5)], 200.0)
    text = exported(failed, Export.HTML)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text

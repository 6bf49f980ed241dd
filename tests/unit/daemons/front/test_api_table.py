"""docs/API.md says of every field what happens, and it happens."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from daemons.protocol.api.generate_body import GenerateBody
from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.protocol.api.sampling_params import Wishes
from daemons.protocol.generate import FinishReason, Submit
from tests.support.front_bench import ROOM, Bench, front_bench

DOCUMENT = (Path(__file__).parents[4] / "docs" / "API.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| `(.*?)` \| ?(.*?) ?\|$", re.MULTILINE)
SHARED, CHAT, COMPLETIONS = "Both of OpenAI's endpoints", "/v1/chat/completions", "/v1/completions"
OF_PAIR = ("cache_salt", "priority")  # what clients may say of it; the rest is a balancer's
FORMS = {
    SHARED: (*SharedBody.__struct_fields__, *OF_PAIR),
    CHAT: ChatBody.__struct_fields__,
    COMPLETIONS: CompletionBody.__struct_fields__,
    "/generate": (*GenerateBody.__struct_fields__, *OF_PAIR),
    "sampling_params": Wishes.__struct_fields__,
}
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    "/generate": {"text": "hi"},
}
NEEDS = {  # fields that mean something only beside others
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "min_tokens": {"max_tokens": 5},
    "min_new_tokens": {"max_new_tokens": 5},
}


class Row(NamedTuple):
    section: str
    field: str
    verdict: str
    example: Any
    told: str


def rows() -> list[Row]:
    found = []
    for part in re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        for field, verdict, example, told in ROW.findall(rest):
            value = json.loads(example)
            found.append(Row(title.strip().strip("`"), field, verdict, value, told))
    return found


ROWS = rows()


@pytest.mark.parametrize("section", FORMS)
def test_the_table_has_every_field_that_is_read_and_no_other(section: str) -> None:
    told = [row.field for row in ROWS if row.section == section]
    assert sorted(told) == sorted(FORMS[section])
    assert {row.verdict for row in ROWS} == {"honoured", "accepted", "refused"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with front_bench(tmp_path) as one:
        yield one


def bodies(row: Row) -> list[tuple[str, dict[str, Any]]]:
    if row.section == "sampling_params":
        asked = {**NEEDS.get(row.field, {}), row.field: row.example}
        return [("/generate", {**LEAST["/generate"], "sampling_params": asked})]
    paths = [CHAT, COMPLETIONS] if row.section == SHARED else [row.section]
    asked = {**NEEDS.get(row.field, {}), row.field: row.example}
    return [(path, {**LEAST[path], **asked}) for path in paths]


def rooms_of(body: dict[str, Any]) -> int | list[int]:
    samples = body.get("n", (body.get("sampling_params") or {}).get("n", 1))
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    return [ROOM + n for n in range(samples * prompts)] if samples * prompts > 1 else ROOM


async def answer_all(bench: Bench) -> None:
    while True:
        submit = await bench.rank.hear(Submit)
        await bench.rank.output(submit, b"a", FinishReason.LENGTH)


async def test_every_field_is_honoured_accepted_or_refused_as_the_table_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def well_formed(_: object) -> None:
        """Grammars have tests of their own, and their library may be missing here."""

    monkeypatch.setattr("daemons.front.grammars.Grammars.check", lambda _, g: well_formed(g))
    answering = asyncio.create_task(answer_all(bench))
    for row in ROWS:
        for path, body in bodies(row):
            sent = bench.body(**{**body, "bootstrap_room": rooms_of(body)})
            async with bench.http.post(path, json=sent) as answer:
                text = await answer.text()
                assert (answer.status == 400) == (row.verdict == "refused"), (row, text)
                if row.verdict == "refused":
                    error = json.loads(text)["error"]
                    assert (error["message"], error["param"]) == (row.told, row.field)
    answering.cancel()
    await asyncio.wait({answering})


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_field_that_the_tables_do_not_have_is_refused_by_name(
    bench: Bench, path: str
) -> None:
    async with bench.http.post(path, json=bench.body(**LEAST[path], surprise=1)) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (400, "surprise")
        assert error["message"] == "Unknown parameter: 'surprise'."

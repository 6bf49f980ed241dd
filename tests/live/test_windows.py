"""Models whose layers forget: the text is the right one, and what no token sees does not travel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.kv.runs import pages_for
from daemons.protocol.metadata import ROW_BYTES
from tests.live.test_local_prefill import alone
from tests.live.test_tokens import NEW, body, prompts, reference
from tests.support.checkpoints import VOCABULARY, WINDOW, checkpoint
from tests.support.cluster import Cluster, eventually, get, post, running

pytestmark = pytest.mark.live

PAGE = 16
ENGINE = {"dtype": "fp32", "page_size": PAGE, "chunk_tokens": 32, "kv_tokens": 4096, "threads": 1}
LENGTHS = (1, WINDOW, 3 * WINDOW + 5, 11 * WINDOW)


@pytest.fixture(params=["mistral", "gemma3"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Cluster]]:
    folder = tmp_path_factory.mktemp(request.param)
    sections = {"engine": ENGINE, "transfer": {"checksum": "all"}}
    with running(folder, str(checkpoint(request.param)), **sections) as cluster:
        yield request.param, cluster


def bytes_of(kind: str, tokens: int) -> int:
    """Return what a prompt costs on the wire: of each layer the pages that are seen later."""
    engine = Engine.load(EngineConfig(**ENGINE), checkpoint(kind))  # type: ignore[arg-type]
    page_bytes = 2 * engine.fingerprint.kv_heads * PAGE * engine.fingerprint.head_dim * 4
    pages = 0
    for window in engine.windows.by_layer:
        first_seen = 0 if window is None else max(0, tokens - window + 1)
        pages += pages_for(tokens, PAGE) - first_seen // PAGE
    return pages * page_bytes + ROW_BYTES


def test_the_text_is_right_and_only_what_is_seen_later_has_travelled(
    served: tuple[str, Cluster],
) -> None:
    kind, cluster = served
    asked = prompts(VOCABULARY, LENGTHS, seed=3)
    expected = reference(str(checkpoint(kind)), asked, NEW)
    for prompt, right in zip([*asked, *asked], [*expected, *expected], strict=True):
        status, answer = post(f"{cluster.lb}/generate", body(prompt, NEW, stream=False))
        assert (status, answer["output_ids"]) == (200, right)
        room = answer["meta_info"]["bootstrap_room"]
        assert eventually(lambda room=room: sent_bytes(cluster, room)) == bytes_of(
            kind, len(prompt)
        )
    for prompt, right in zip(asked, expected, strict=True):
        assert alone(cluster, body(prompt, NEW, stream=False))[1]["output_ids"] == right


def sent_bytes(cluster: Cluster, room: int) -> int:
    """Return what a room that has ended has sent, 0 before its end."""
    (told,) = get(f"{cluster.url('p0')}/rooms/{room}")["stories"]
    return 0 if told["open"] else sum(line["bytes"] for line in told["lines"])

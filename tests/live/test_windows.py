"""Models whose layers forget: the right text, little memory, and what no token sees stays here."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from daemons.engine.config import EngineConfig
from daemons.engine.engine import Engine
from daemons.kv.runs import pages_for
from daemons.protocol.metadata import ROW_BYTES
from tests.live.conftest import CHAOS
from tests.live.test_local_prefill import alone
from tests.live.test_tokens import NEW, body, prompts, reference
from tests.support.checkpoints import VOCABULARY, WINDOW, checkpoint
from tests.support.cluster import Cluster, eventually, get, kill, post, running
from tests.support.faults import Right, arm, ask, clear, healthy, prompt_of

pytestmark = pytest.mark.live

PAGE = 16
ENGINE = {"dtype": "fp32", "page_size": PAGE, "chunk_tokens": 32, "kv_tokens": 4096, "threads": 1}
LENGTHS = (1, WINDOW, 3 * WINDOW + 5, 11 * WINDOW)


@pytest.fixture(scope="module", params=["mistral", "gemma3"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Cluster]]:
    folder = tmp_path_factory.mktemp(request.param)
    sections = {"engine": ENGINE, "transfer": {"checksum": "all"}}
    with running(folder, str(checkpoint(request.param)), **sections) as cluster:
        yield request.param, cluster


@functools.cache
def layers(kind: str) -> tuple[tuple[int | None, ...], int]:
    """Return the window of each layer, and the bytes of a page in one of them."""
    engine = Engine.load(EngineConfig(**ENGINE), checkpoint(kind))  # type: ignore[arg-type]
    page_bytes = 2 * engine.fingerprint.kv_heads * PAGE * engine.fingerprint.head_dim * 4
    return engine.windows.by_layer, page_bytes


def bytes_of(kind: str, tokens: int, cached: int = 0) -> int:
    """Return what a prompt costs on the wire, of which decode has ``cached`` tokens already.

    Of full layers what decode has not, of others what is seen later.
    """
    windows, page_bytes = layers(kind)
    firsts = [
        cached // PAGE if window is None else max(0, tokens - window + 1) // PAGE
        for window in windows
    ]
    return sum(pages_for(tokens, PAGE) - first for first in firsts) * page_bytes + ROW_BYTES


def test_the_text_is_right_and_only_what_is_seen_later_has_travelled(
    served: tuple[str, Cluster],
) -> None:
    kind, cluster = served
    asked = prompts(VOCABULARY, LENGTHS, seed=3)
    expected = reference(str(checkpoint(kind)), asked, NEW)
    for is_again in (False, True):  # then decode has the whole pages of full layers
        for prompt, right in zip(asked, expected, strict=True):
            status, answer = post(f"{cluster.lb}/generate", body(prompt, NEW, stream=False))
            assert (status, answer["output_ids"]) == (200, right)
            room = answer["meta_info"]["bootstrap_room"]
            cached = len(prompt) // PAGE * PAGE if is_again else 0
            assert eventually(lambda room=room: sent_bytes(cluster, room)) == bytes_of(
                kind, len(prompt), cached
            )
    assert cluster.status("p0")["counters"]["cached_tokens"] > 0
    for prompt, right in zip(asked, expected, strict=True):
        assert alone(cluster, body(prompt, NEW, stream=False))[1]["output_ids"] == right


def test_prompts_that_begin_alike_share_what_is_computed(served: tuple[str, Cluster]) -> None:
    kind, cluster = served
    model, beginning = Right(str(checkpoint(kind))), prompt_of(7 * PAGE, 11)
    for at in range(3):
        prompt = [*beginning, *prompt_of(2 * PAGE + at, 20 + at)]
        ended = ask(cluster, prompt).end()
        assert ended.ids == model.ids(prompt)
        cached_tokens = ended.answer["meta_info"]["cached_tokens"]
        assert cached_tokens == (len(beginning) if at else 0)


def test_many_rooms_at_once_keep_their_windows_apart(served: tuple[str, Cluster]) -> None:
    kind, cluster = served
    asked = [[*prompt_of(40, 1), *prompt_of(length, length)] for length in range(1, 120, 7)]
    model = Right(str(checkpoint(kind)))
    expected = [model.ids(prompt, 3 * WINDOW) for prompt in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        ended = list(pool.map(lambda prompt: ask(cluster, prompt, 3 * WINDOW).end(), asked))
    assert [one.ids for one in ended] == expected
    for instance in ("p0", "d0"):
        assert eventually(lambda name=instance: cluster.is_idle(name)), cluster.status(instance)
    assert cluster.status("d0")["window_pages"]["free"] == window_pages(cluster, "d0")


def test_the_pool_of_layers_with_a_window_is_of_its_own_size(served: tuple[str, Cluster]) -> None:
    _, cluster = served
    pages = cluster.status("d0")["pages_total"]
    assert 0 < window_pages(cluster, "d0") <= pages


def window_pages(cluster: Cluster, instance: str) -> int:
    return sum(cluster.status(instance)["window_pages"].values())


def sent_bytes(cluster: Cluster, room: int) -> int:
    """Return what a room that has ended has sent, 0 before its end."""
    (told,) = get(f"{cluster.url('p0')}/rooms/{room}")["stories"]
    return 0 if told["open"] else sum(line["bytes"] for line in told["lines"])


# --- faults ---


@pytest.fixture(scope="module")
def told() -> Right:
    return Right(str(checkpoint("gemma3")))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A pair that takes faults, with window pages for few rooms."""
    engine = CHAOS["engine"] | {"batch_rooms": 2}  # type: ignore[operator]
    folder = tmp_path_factory.mktemp("faulty")
    sections = {**CHAOS, "engine": engine, "decode": {"d0": {"retract_tokens": 2048}}}
    with running(folder, str(checkpoint("gemma3")), **sections) as cluster:
        yield cluster


@pytest.fixture
def pair(faulty: Cluster, told: Right) -> Iterator[Cluster]:
    healthy(faulty, told)
    yield faulty
    clear(faulty, "p0", "d0")
    healthy(faulty, told)


def quarantined(cluster: Cluster) -> int:
    count: int = cluster.status("d0")["window_pages"]["quarantined"]
    return count


def all_free(cluster: Cluster) -> bool:
    said = cluster.status("d0")["window_pages"]
    return bool(said["free"] == sum(said.values()))


def leave(cluster: Cluster) -> None:
    """The client goes away; prefill's write still stands."""


def kill_prefill(cluster: Cluster) -> None:
    for pid in cluster.daemon_pids("p0"):
        with contextlib.suppress(ProcessLookupError):
            kill(pid)


@pytest.mark.parametrize("end", [leave, kill_prefill])
def test_window_pages_of_a_room_that_ends_in_transfer_come_back_through_quarantine(
    pair: Cluster, told: Right, end: Callable[[Cluster], None]
) -> None:
    prompt = prompt_of(60, 5)
    arm(pair, "p0", "write.freeze")
    client = ask(pair, prompt)
    assert eventually(lambda: pair.status("d0")["window_pages"]["writer"])
    offered = pair.status("d0")["window_pages"]["writer"]
    client.leave()
    assert eventually(lambda: quarantined(pair) == offered, 10), pair.status("d0")
    assert pair.status("d0")["rooms"]["transfer"] == 0
    end(pair)
    clear(pair, "p0")
    assert eventually(lambda: all_free(pair), 20), pair.status("d0")
    healthy(pair, told)
    assert ask(pair, prompt).end().ids == told.ids(prompt)


def test_a_room_whose_pages_the_host_keeps_has_its_window_pages_when_it_is_back(
    pair: Cluster, told: Right
) -> None:
    prompt = prompt_of(50, 6)
    before = pair.status("d0")["counters"].get("retractions", 0)
    arm(pair, "d0", "room.retract")
    assert ask(pair, prompt, 3 * WINDOW).end().ids == told.ids(prompt, 3 * WINDOW)
    assert pair.status("d0")["counters"]["retractions"] > before
    assert eventually(lambda: all_free(pair), 10)

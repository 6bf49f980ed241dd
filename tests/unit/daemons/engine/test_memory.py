"""What is free, by files that a kernel could have written, and how large a pool is then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daemons.cluster.errors import OperatorError
from daemons.engine import memory
from daemons.engine.config import EngineConfig
from daemons.engine.device import Place
from daemons.engine.memory import PageCosts, free_bytes, no_memory, pool_pages
from daemons.protocol.handshake import PAGES_LIMIT

GIB = 1 << 30
CPU = Place(torch.device("cpu"), torch.float32)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB available and no control groups."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\nBuffers: 2 kB\n"
    (tmp_path / "proc/meminfo").write_text(lines)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    return tmp_path


def group(kernel: Path, path: str, names: tuple[str, str], limit: str, used: int) -> None:
    folder = kernel / "cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_without_limits_free_is_what_the_kernel_calls_available(kernel: Path) -> None:
    assert free_bytes(CPU) == 8 * GIB


def test_the_tightest_control_group_above_the_process_counts(kernel: Path) -> None:
    (kernel / "proc/self/cgroup").write_text("0::/user/pd\n")
    group(kernel, "user/pd", V2, "max", 3 * GIB)
    assert free_bytes(CPU) == 8 * GIB
    group(kernel, "user", V2, str(6 * GIB), 3 * GIB)
    assert free_bytes(CPU) == 4 * GIB  # page cache, 1 GiB, would be given up
    group(kernel, "user/pd", V2, str(2 * GIB), 3 * GIB)
    assert free_bytes(CPU) == 0


def test_the_first_version_of_control_groups_counts_too(kernel: Path) -> None:
    (kernel / "proc/self/cgroup").write_text("9:name=systemd:/\n4:memory:/pd\n1:cpu:/\n0::/\n")
    group(kernel, "memory/pd", V1, str(4 * GIB), 2 * GIB)
    assert free_bytes(CPU) == 3 * GIB


def test_a_kernel_that_does_not_say_is_the_operators_error(kernel: Path) -> None:
    (kernel / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(OperatorError, match="MemAvailable"):
        free_bytes(CPU)


def test_where_proc_is_hidden_the_operator_is_told_what_is_wanted(kernel: Path) -> None:
    (kernel / "proc/meminfo").unlink()
    with pytest.raises(OperatorError, match="meminfo cannot be read: No such file") as caught:
        free_bytes(CPU)
    assert "ProcSubset=all" in caught.value.hint


def test_a_kernel_without_control_groups_limits_nothing(kernel: Path) -> None:
    (kernel / "proc/self/cgroup").unlink()
    assert free_bytes(CPU) == 8 * GIB


def test_this_machine_has_some_memory_left() -> None:
    assert free_bytes(CPU) > 1 << 20


def pages(kv_tokens: int, free: int, **settings: float) -> int:
    config = EngineConfig(page_size=16, **settings)  # type: ignore[arg-type]
    return pool_pages(config, PageCosts(1 << 20), free=free, kv_tokens=kv_tokens)


def test_a_pool_without_a_size_takes_its_share_of_what_is_free() -> None:
    assert pages(0, 100 << 20) == 40
    assert pages(0, 100 << 20, kv_fraction=0.9) == 90
    assert pages(0, 1 << 60) == PAGES_LIMIT


def test_a_pool_with_a_size_has_it() -> None:
    assert pages(160, 100 << 20) == 10
    assert pages(1600, 100 << 20) == 100


def test_a_pool_that_does_not_fit_says_by_how_much_and_what_to_set() -> None:
    with pytest.raises(OperatorError) as caught:
        pages(1616, 100 << 20)
    assert caught.value.what == (
        "a KV pool of 1616 tokens takes 101.0 MiB, 100.0 MiB are free: 1.0 MiB too much"
    )
    assert "at most 1600, or to 0" in caught.value.hint


@pytest.mark.parametrize(
    ("kv_tokens", "free", "words"),
    [(0, 1 << 20, "no KV page of 1.0 MiB fits"), (15, 1 << 40, "0 pages of 16")],
)
def test_a_pool_without_a_page_is_refused(kv_tokens: int, free: int, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        pages(kv_tokens, free)


def test_memory_that_was_promised_and_not_given_is_told_with_what_is_missing(kernel: Path) -> None:
    error = no_memory("a KV pool of 9 pages", 9 * GIB, CPU)
    assert "takes 9.00 GiB, 8.00 GiB are free: 1.00 GiB too much" in error.what


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 40), st.integers(0, 2000))
def test_a_budget_buys_the_most_pages_that_it_can(
    full_bytes: int, window_bytes: int, window_pages: int, budget: int
) -> None:
    if full_bytes + window_bytes == 0:
        return
    limit = 300
    costs = PageCosts(full_bytes, window_bytes, window_pages if window_bytes else 0, limit)
    pages = costs.within(budget)
    assert costs.bytes_of(pages) <= budget
    if full_bytes or pages < limit:
        assert costs.bytes_of(pages + 1) > budget
    assert costs.window_pages_of(pages) == min(pages, costs.window_pages)


def test_pages_that_no_layer_pays_for_are_as_many_as_are_of_use() -> None:
    costs = PageCosts(full_bytes=0, window_bytes=4, window_pages=10, pages=300)
    assert costs.within(39) == 9
    assert costs.within(40) == 300


def test_a_window_pool_that_does_not_fit_beside_the_pages_is_told() -> None:
    config = EngineConfig(page_size=16)
    costs = PageCosts(1 << 20, 1 << 20, window_pages=20)
    assert pool_pages(config, costs, free=70 << 20, kv_tokens=800) == 50
    with pytest.raises(
        OperatorError, match=r"takes 70\.0 MiB, 69\.0 MiB are free: 1\.0 MiB"
    ) as told:
        pool_pages(config, costs, free=69 << 20, kv_tokens=800)
    assert "at most 784," in told.value.hint
    assert pool_pages(config, costs, free=250 << 20, kv_tokens=0) == 80  # 0.4 of it less 20
    with pytest.raises(OperatorError, match=r"no KV page of 2\.0 MiB"):
        pool_pages(config, costs, free=4 << 20, kv_tokens=0)

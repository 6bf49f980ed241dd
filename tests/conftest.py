"""Flags of every test run; what a run leaves out is counted aloud at its end, and tables are there.

A test under ``gpu``, ``rdma`` or ``nixl`` is left out where there is no such device or package, one
under ``long`` without ``--long``. All that is told at the end is gathered from the reports of the
tests, since what a process of pytest-xdist prints is lost.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import cluster, devices

BEGAN_S = time.monotonic()
INFINIBAND = Path("/sys/class/infiniband")
LEFT_OUT: Counter[str] = Counter()  # marker: tests
TOLD: list[str] = []
CELLS: dict[str, list[bool]] = {}  # a matrix of live tests: whether each cell passed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="every cell of the fault matrices")
    parser.addoption("--screens", action="store_true", help="write tests/unit/pdctl/screens anew")
    parser.addoption("--address", default=cluster.ADDRESS, help="where clusters live, e.g. ::1")
    parser.addoption("--backend", help="transfer backend of the conformance tests, not all of ours")
    parser.addoption(
        "--device",
        default=devices.GPU_IS,
        choices=["cuda", "cpu"],
        help="what tests marked gpu run on; cpu shows that the tests themselves are sound",
    )
    parser.addoption(
        "--budget", type=float, default=0, help="seconds after which no more test begins; 0: all do"
    )


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--backend", default=None):
        from tests.support import backends  # only where it is asked for: it loads numpy

        backends.only(name)
    cluster.ADDRESS = config.getoption("--address", default=cluster.ADDRESS)
    devices.GPU_IS = config.getoption("--device", default=devices.GPU_IS)


# marker: (whether its tests can run, why they cannot)
def wants(config: pytest.Config) -> dict[str, tuple[Callable[[], bool], str]]:
    return {
        "gpu": (lambda: devices.GPU_IS == "cpu" or devices.has_cuda(), "no CUDA device"),
        "rdma": (lambda: INFINIBAND.is_dir() and any(INFINIBAND.iterdir()), "no RDMA device"),
        "nixl": (lambda: find_spec("nixl_cu12") is not None, "scripts/install --nixl"),
        "budget": (lambda: True, "the time was up"),
        "long": (lambda: bool(config.getoption("--long", default=False)), "only with --long"),
    }


@pytest.hookimpl(trylast=True)  # what -m and -k have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files are handed to processes in this order: those that wait longest shall not come last.
    items.sort(key=lambda item: "tests/systemd/" not in item.nodeid)
    for marker, (can_run, _) in wants(config).items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if not marked or can_run():
            continue
        LEFT_OUT[marker] = len(marked)
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in set(marked)]


def pytest_collection_finish() -> None:
    """Spare later collections of garbage, some of them asked for, all that was imported."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    budget_s = item.config.getoption("--budget", default=0.0)
    if budget_s and time.monotonic() - BEGAN_S > budget_s:
        LEFT_OUT["budget"] += 1
        pytest.skip("the time was up")


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Tells a line or a table at the end of the run."""
    return lambda text: record_property("told", text)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":  # every report of a test has the properties so far
        TOLD.extend(str(text) for name, text in report.user_properties if name == "told")
    if report.when == "call" and "tests/live/test_" in report.nodeid and "[" in report.nodeid:
        matrix = report.nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
        CELLS.setdefault(matrix, []).append(report.passed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    told = getattr(session.config, "workeroutput", None)  # in a process of pytest-xdist
    if told is not None:
        told["left_out"] = dict(LEFT_OUT)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take what a process of pytest-xdist leaves out: all of them collect the same tests."""
    for marker, tests in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        LEFT_OUT[marker] = max(LEFT_OUT[marker], tests)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for text in TOLD:
        terminalreporter.write_line(f"{text}\n")
    for matrix, passed in CELLS.items():
        terminalreporter.write_line(f"{matrix}: {len(passed)} cells run, {sum(passed)} passed")
    for marker, tests in LEFT_OUT.items():
        terminalreporter.write_line(f"not run, {marker}: {tests} tests: {wants(config)[marker][1]}")

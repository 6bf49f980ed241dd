"""What ``scripts/bench engine`` says of a cell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bench import engine
from tests.bench.cells import Asked, Cells, Lacking, Peer, Spread, spread_of, verdicts


def just(value: float) -> Spread:
    return spread_of([value])


def said(cell: str, ours: float, share: float, **peers: float) -> list[tuple[str, bool]]:
    speeds = {"ours": just(ours), "ours, torch": just(1e9)}
    speeds |= {name: just(speed) for name, speed in peers.items()}
    return [(one.goal, one.is_met) for one in verdicts(cell, speeds, just(share))]


def test_a_spread_is_a_median_with_its_range() -> None:
    assert str(spread_of([3.0, 1.0, 2.0])) == "2 (1-3)"


def test_a_cell_has_to_reach_its_part_of_the_limit() -> None:
    assert said("decode 1", 50, 0.79) == [("0.79 of the limit, 0.8 wanted", False)]
    assert said("decode 8", 50, 0.6) == [("0.60 of the limit, 0.6 wanted", True)]
    assert said("prefill 2048", 50, 0.8) == [("0.80 of the limit, 0.8 wanted", True)]
    assert said("decode 32", 50, 0.1) == []


def test_the_fastest_peer_is_the_one_to_be_ahead_of_and_our_own_way_by_torch_is_none() -> None:
    assert said("decode 32", 50, 0.1, a=25, b=100) == [("0.50 of b", False)]
    assert said("decode 32", 150, 0.1, a=25, b=100) == [("1.50 of b", True)]


def peer(name: str, version: str | None, fault: Exception | None = None) -> Peer:
    def install(threads: int) -> None:
        raise Lacking("no compiler")

    def measure(asked: Asked, dtype: str) -> Cells:
        raise fault or AssertionError

    return Peer(name, lambda: version, install, measure)


def test_what_is_not_installed_is_said_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "INSTALLED", {"a": peer("a", None), "b": peer("b", "1")})
    there, absent = engine.available([], 1)
    assert [one.name for one in there] == ["b"]
    assert absent == {"a": "not installed; scripts/bench engine --with a does so"}
    assert engine.available(["a"], 1)[1] == {"a": "could not be installed: no compiler"}


def test_a_peer_that_fails_is_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"decode": [{"rooms": 1, "read_share": 0.9}], "prefill": []}
    monkeypatch.setattr(engine, "ours", lambda *_: ({"decode 1": 50.0}, document))
    monkeypatch.setattr(engine, "transformers", lambda *_: {"decode 1": 20.0})
    absent: dict[str, str] = {}
    asked = Asked(Path("model"), 1, (1,), ())
    broken = peer("b", "1", subprocess.TimeoutExpired("b", 9))
    found = engine.compare(asked, "fp32", 2, [broken], absent)
    assert list(found["rounds"]) == ["ours", "ours, torch", "transformers"]
    assert absent["b, fp32"].startswith("failed: ")
    (cell,) = found["cells"].values()
    assert [one["is_met"] for one in cell["verdicts"]] == [True, True]


def test_a_competitor_that_nobody_knows_is_the_callers_mistake() -> None:
    with pytest.raises(SystemExit, match="2"):
        engine.main(["--with", "nobody", "--model", "somewhere"])

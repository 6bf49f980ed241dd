"""Whatever the arguments are, pdctl ends with a code of its own and no traceback.

Only verbs that change nothing by themselves get a cluster that answers; all others get files that
are no cluster's, so that nothing is started, stopped or written.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.__main__ import run
from pdctl.commands import events, maybe_stuck, top
from pdctl.errors import Exit
from pdctl.finding import Check, Status
from pdctl.reference import commands

ALL = dict(commands())
# They would wait, write, measure or run for long with right arguments; here they get wrong ones.
NEEDS_NONE = {"pdctl bench engine", "pdctl keygen", "pdctl support-bundle"}
CODES = {int(code) for code in Exit} | {130}
WORDS = st.one_of(
    st.sampled_from(["", "-", "--", "p0", "lb", "7f3a", "-1", "0", "1e309", "nan", "json", "yaml"]),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file whose daemons answer nobody; nothing sleeps and nothing is asked."""
    monkeypatch.chdir(tmp_path)
    for module in (events, maybe_stuck, top):
        monkeypatch.setattr(module.time, "sleep", _tired)
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: f\nbootstrap: {port: 1}\nlb: {port: 1}\nprefill: {p0: {}}\ndecode: {d0: {}}\n"
    )
    monkeypatch.setattr("pdctl.target.SYSTEM_FILE", tmp_path / "none.yaml")
    quick = Check("mooncake", Status.OK, "not loaded")
    monkeypatch.setattr("pdctl.checks.check_mooncake", lambda: quick)
    return path


def _tired(_: float) -> None:
    raise KeyboardInterrupt


def options_of(name: str) -> list[str]:
    found = [word for param in ALL[name].params for word in (*param.opts, *param.secondary_opts)]
    return [word for word in found if word.startswith("-") and word not in ("--help", "-h")]


@st.composite
def arguments(draw: st.DrawFn, name: str) -> list[str]:
    given: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["word", "option", "pair", "joined"]))
        if kind == "word":
            given.append(draw(WORDS))
            continue
        option = draw(st.sampled_from(options_of(name) or ["--bogus"]))
        if kind == "option":
            given.append(option)
        else:
            value = draw(WORDS)
            given += [option, value] if kind == "pair" else [f"{option}={value}"]
    return given


CHANGES = {
    "pdctl up", "pdctl down", "pdctl install", "pdctl uninstall", "pdctl diff",
    "pdctl config push", "pdctl chat", "pdctl chaos",
} | NEEDS_NONE  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_no_argument_makes_a_traceback(name: str, nowhere: Path) -> None:
    config = "absent.yaml" if name in CHANGES else str(nowhere)
    has_config = any(param.name == "config" for param in ALL[name].params)

    @settings(
        max_examples=12, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )  # fmt: skip
    @given(arguments(name))
    def holds(given_words: list[str]) -> None:
        words = [*name.split()[1:], *given_words]
        if name in NEEDS_NONE:
            words.append("--no-such-option")
        elif has_config:
            words += ["--config", config]
        code, out, err = quietly(words)
        assert code in CODES, (words, code, err)
        assert "Traceback" not in out + err, words
        assert "defect of pdctl" not in err, (words, err)
        if code not in (0, 1, 130) and not out:  # a screen may also be a bad one
            assert err.startswith("pdctl: ") or "\npdctl: " in err, (words, err)

    holds()


def quietly(words: list[str]) -> tuple[Any, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        open(os.devnull) as nothing,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("sys.stdin", nothing)
        return run(words), out.getvalue(), err.getvalue()

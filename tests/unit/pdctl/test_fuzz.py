"""Whatever the arguments are, pdctl ends with a code of its own and no traceback.

What starts, stops or writes is replaced by nothing; all before it is the verb's own. So a verb
gets as far as its deed, and none is done.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemons.cluster.key import make_key
from pdctl.__main__ import run
from pdctl.errors import Exit
from pdctl.finding import Check, Status
from pdctl.installation.state import Record
from pdctl.reference import commands

ALL = dict(commands())
# They would write anywhere or run for long with right arguments; here they get wrong ones.
NEEDS_NONE = {"pdctl bench engine", "pdctl support-bundle"}
RUNS = "ActiveState=active\nResult=success\nExecMainStatus=0\nNRestarts=0\n"
# The deeds, and what each returns instead.
DEEDS = {
    "pdctl.units.installed": False,
    "pdctl.units.systemctl": RUNS,
    "pdctl.supervisor.prepare": None,
    "pdctl.commands.up._check_host": None,  # may make the model
    "pdctl.commands.up._foreground": Exit.OK,
    "pdctl.commands.up._detached": None,
    "pdctl.commands.push._write": None,
    "pdctl.commands.install._check_software": None,
    "pdctl.commands.install._place_model": None,
    "pdctl.commands.install.reload_units": None,
    "pdctl.commands.uninstall._stop": None,
    "pdctl.commands.uninstall._remove_rest": None,
    "pdctl.installation.state.read_record": Record(
        version="0", host="local", prefix="/opt/pd", user="pd"
    ),
    "pdctl.installation.steps.apply": None,
    "pdctl.installation.steps.make_user": None,
    "pdctl.installation.steps.erase": [],
}
CODES = {int(code) for code in Exit} | {130}
SLEEP = time.sleep
WORDS = st.one_of(
    st.sampled_from(["", "-", "--", "p0", "lb", "7f3a", "-1", "0", "1e309", "nan", "json", "yaml"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),  # as execve has
    st.integers().map(str),
    st.floats().map(str),
)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file whose daemons answer nobody; nothing sleeps and nothing is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    key = make_key(tmp_path / "a-key")
    for name, result in {**DEEDS, "daemons.cluster.key.make_key": key}.items():
        monkeypatch.setattr(name, partial(_nothing, result))
    monkeypatch.setattr(time, "sleep", _tired)
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: f\nbootstrap: {port: 1}\nlb: {port: 1}\nprefill: {p0: {}}\ndecode: {d0: {}}\n"
    )
    monkeypatch.setattr("pdctl.target.SYSTEM_FILE", tmp_path / "none.yaml")
    quick = Check("mooncake", Status.OK, "not loaded")
    monkeypatch.setattr("pdctl.checks.check_mooncake", lambda: quick)
    return path


def _nothing(result: object, *_: object, **__: object) -> object:
    return result


def _tired(for_s: float) -> None:
    """End whatever of ours waits; what Python itself waits for, as for a child's end, is short."""
    if sys._getframe(1).f_globals["__name__"].startswith("pdctl"):
        raise KeyboardInterrupt
    SLEEP(for_s)


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


@pytest.mark.parametrize("name", ALL)
def test_no_argument_makes_a_traceback(name: str, nowhere: Path) -> None:
    has = {param.name for param in ALL[name].params}

    @settings(
        max_examples=12, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )  # fmt: skip
    @given(arguments(name))
    def holds(given_words: list[str]) -> None:
        words = [*name.split()[1:], *given_words]
        if name in NEEDS_NONE:
            words.append("--no-such-option")
        else:
            words += ["--config", str(nowhere)] if "config" in has else []
            words += ["--yes"] if "yes" in has else []
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("up --all-hosts", "starting 1 hosts"),
        ("down --all-hosts", "local down"),
        ("install", "pdctl up starts it"),
        ("uninstall", "uninstalled"),
        ("config push --to absent.yaml", "pdctl restart --rolling"),
    ],
)
def test_a_verb_that_changes_things_gets_as_far_as_its_deed(
    words: str, told: str, nowhere: Path
) -> None:
    config = [] if words == "uninstall" else ["--config", str(nowhere)]
    yes = [] if words.startswith("up") else ["--yes"]
    _, _, err = quietly([*words.split(), *config, *yes])
    assert told in err

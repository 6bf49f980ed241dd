"""The process that compiles grammars first: it answers, or it dies of the grammar alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from daemons.protocol.generate import Grammar, GrammarKind
from tests.support.tiny_model import tiny_model

pytest.importorskip("xgrammar")


def test_it_says_that_it_is_ready_then_answers_line_by_line_until_its_input_ends(
    tmp_path: Path,
) -> None:
    asked = [Grammar(GrammarKind.REGEX, "a\n+"), Grammar(GrammarKind.REGEX, "(")]
    argv = [sys.executable, "-m", "daemons.engine.grammar_check", str(tiny_model(tmp_path)), "258"]
    lines = b"".join(msgspec.json.encode(grammar) + b"\n" for grammar in asked)
    done = subprocess.run(argv, input=lines, capture_output=True, timeout=120, check=True)
    answers = [msgspec.json.decode(line)["why"] for line in done.stdout.splitlines()]
    assert answers[:2] == ["", ""]
    assert answers[2].startswith("regex: ")
    assert len(answers) == 3


def test_a_grammar_that_takes_too_long_ends_the_process_without_an_answer(tmp_path: Path) -> None:
    code = "from daemons.engine import grammar_check as g; g.CPU_S = 1; g.main()"
    argv = [sys.executable, "-c", code, str(tiny_model(tmp_path)), "258"]
    line = msgspec.json.encode(Grammar(GrammarKind.REGEX, "a" * 130_000)) + b"\n"
    done = subprocess.run(argv, input=line * 40, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGXCPU
    assert len(done.stdout.splitlines()) < 40  # as many as this machine does in a second

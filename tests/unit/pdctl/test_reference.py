"""The command reference is what the commands say."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdctl.reference import commands, example_of, reference
from tests.support.fake_fleet import Said

SOURCES = Path(__file__).parents[3] / "pdctl"
DOCS = Path(__file__).parents[3] / "docs"
ALL = dict(commands())
COMMAND = re.compile(r"\bpdctl ((?:[\w=/-]+ ?)+)")
PROSE = ("are", "makes")  # what pdctl does, as words of a text


def test_the_reference_in_docs_is_the_present_one() -> None:
    hint = "python -m pdctl.reference > docs/CLI.md"
    assert (DOCS / "CLI.md").read_text() == reference(), hint


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_an_example_of_itself_and_helps(
    name: str, pdctl: Callable[..., Said]
) -> None:
    example = example_of(ALL[name])
    assert f"{name} " in f"{example} "
    said = pdctl(*name.split()[1:], "--help")
    assert said.code == 0
    assert "Example: pdctl" in said.out


@pytest.mark.parametrize("name", ALL)
def test_the_words_of_an_example_are_options_of_the_command(name: str) -> None:
    spelled = {word for param in ALL[name].params for word in (*param.opts, *param.secondary_opts)}
    for part in shlex.split(example_of(ALL[name]).split(" | ")[0].split(" && ")[0]):
        if part.startswith("-"):
            assert part.partition("=")[0] in spelled, part


def test_every_option_and_argument_is_explained() -> None:
    mute = [
        f"{name} {param.name}"
        for name, command in ALL.items()
        for param in command.params
        if not param.help
    ]
    assert mute == []


def test_the_guide_names_only_commands_that_are_there() -> None:
    words = (DOCS / "OPERATIONS.md").read_text().replace("`", "\n").splitlines()
    named = [line.split() for line in words if line.startswith("pdctl ")]
    assert len(named) > 30
    verbs = {tuple(name.split()[1:]) for name in ALL}
    for line in named:
        assert tuple(line[1:2]) in verbs or tuple(line[1:3]) in verbs, line


def test_a_hint_names_only_commands_and_options_that_are_there() -> None:
    named = [(path.name, words) for path in SOURCES.rglob("*.py") for words in hinted(path)]
    assert len(named) > 50
    assert [one for one in named if not is_there(one[1])] == []


def hinted(path: Path) -> Iterator[str]:
    """Yield what follows ``pdctl `` in a source's strings; docstrings are prose."""
    tree = ast.parse(path.read_text())
    prose = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if is_told(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield from COMMAND.findall("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and node.value not in prose:
            yield from COMMAND.findall(str(node.value))


def is_told(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def is_there(words: str) -> bool:
    line = words.split()
    if line[0] in PROSE:
        return True
    command = ALL.get(f"pdctl {' '.join(line[:2])}") or ALL.get(f"pdctl {line[0]}")
    if command is None:
        return False
    spelled = {word for param in command.params for word in (*param.opts, *param.secondary_opts)}
    given = {word.partition("=")[0] for word in line if re.match(r"--?[a-z]", word)}
    return given <= spelled | {"--help"}

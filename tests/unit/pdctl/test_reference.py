"""The command reference is what the commands say."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.reference import commands, example_of, reference
from tests.support.fake_fleet import Said

DOCS = Path(__file__).parents[3] / "docs"
ALL = dict(commands())


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

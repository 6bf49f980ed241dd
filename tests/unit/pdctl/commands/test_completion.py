"""The shell's completion."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.commands.completion import Shell
from pdctl.errors import Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("shell", Shell)
def test_every_shell_has_a_script_that_asks_pdctl(shell: Shell, pdctl: Pdctl) -> None:
    said = pdctl("completion", shell)
    assert (said.code, said.err) == (Exit.OK, "")
    assert "_PDCTL_COMPLETE" in said.out


def test_the_script_is_one_that_bash_reads(pdctl: Pdctl) -> None:
    script = f"{pdctl('completion', 'bash').out}\ncomplete -p pdctl"
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pdctl" in done.stdout


def test_it_is_installed_once_for_this_user(home: Path, pdctl: Pdctl) -> None:
    for _ in range(2):
        assert pdctl("completion", "bash", "--install").code == Exit.OK
    (line,) = [line for line in (home / ".bashrc").read_text().splitlines() if line]
    assert line == f"source '{home}/.bash_completions/pdctl.sh'"
    assert (home / ".bash_completions/pdctl.sh").read_text().strip() in (
        pdctl("completion", "bash").out
    )


def test_a_home_that_cannot_be_written_is_told(home: Path, pdctl: Pdctl) -> None:
    (home / ".bash_completions").write_text("a file where the folder should be")
    said = pdctl("completion", "bash", "--install")
    assert said.code == Exit.FAILED
    assert "cannot write" in said.err


@pytest.mark.parametrize("present", ["", "/bin/tcsh"])
def test_a_shell_without_a_script_is_told_which_have_one(
    present: str, pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", present)
    said = pdctl("completion")
    assert said.code == Exit.USAGE
    assert "pdctl completion bash|zsh|fish" in said.err


def test_the_users_shell_is_found(pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert pdctl("completion").out == pdctl("completion", "fish").out

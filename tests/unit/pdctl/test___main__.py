"""How pdctl ends: two lines and an exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from pdctl.errors import CommandError, Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]


def test_a_usage_error_is_two_lines_and_exit_2(pdctl: Pdctl) -> None:
    said = pdctl("bogus")
    assert said.code == Exit.USAGE
    what, hint = said.err.splitlines()
    assert what.startswith("pdctl: No such command")
    assert hint == "hint: pdctl --help"


def test_a_bad_option_names_the_verbs_own_help(pdctl: Pdctl) -> None:
    said = pdctl("status", "--bogus")
    assert said.code == Exit.USAGE
    assert said.err.splitlines()[1] == "hint: pdctl status --help"


def test_a_missing_cluster_file_is_two_lines_and_exit_8(pdctl: Pdctl) -> None:
    said = pdctl("status", "-c", "nowhere.yaml")
    assert said.code == Exit.BAD_CONFIG
    assert len(said.err.splitlines()) == 2


def test_debug_shows_the_traceback(pdctl: Pdctl) -> None:
    from daemons.cluster.errors import OperatorError

    with pytest.raises(OperatorError):
        pdctl("--debug", "status", "-c", "nowhere.yaml")


def test_a_defect_is_told_as_one(pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("pdctl.target.find", breaks)
    said = pdctl("status")
    assert said.code == Exit.FAILED
    assert "ZeroDivisionError: oops" in said.err
    assert "defect" in said.err


def test_the_exit_code_of_a_command_error_is_its_own(
    pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: object) -> None:
        raise CommandError("no", "yes", code=Exit.CONFLICT)

    monkeypatch.setattr("pdctl.target.find", refuses)
    assert pdctl("status") == (Exit.CONFLICT, "", "pdctl: no\nhint: yes\n")


def test_ctrl_c_is_130_without_words(pdctl: Pdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pdctl.target.find", interrupted)
    assert pdctl("status") == (130, "", "")


def test_help_documents_every_exit_code(pdctl: Pdctl) -> None:
    said = pdctl("--help")
    assert said.code == Exit.OK
    for code in Exit:
        assert f"{code.value} " in said.out


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from pdctl.__main__ import run; run(['--help']); "
        "heavy = {'torch', 'zmq', 'mooncake', 'structlog', 'numpy', 'aiohttp', 'transformers'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_module_of_pdctl_loads_without_the_engine() -> None:
    script = (
        "import sys, pkgutil, importlib, pdctl\n"
        "for found in pkgutil.walk_packages(pdctl.__path__, 'pdctl.'):\n"
        "    if found.name != 'pdctl.__main__': importlib.import_module(found.name)\n"
        "heavy = {'torch', 'zmq', 'mooncake', 'structlog', 'numpy', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_reader_that_leaves_is_no_error() -> None:
    script = f"{sys.executable} -m pdctl config view | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""

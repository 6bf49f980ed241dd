from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemons.bootstrap import __main__ as main_module


def test_a_wrong_setting_exits_with_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nbootstrap: {prot: 1}\n")
    assert main_module.main(["--config", str(path)]) == 78
    what, hint = capsys.readouterr().err.splitlines()
    assert what == "pd-bootstrap: bootstrap: Object contains unknown field `prot`"
    assert hint.startswith("hint: ")


def test_it_serves_until_sigterm_and_exits_with_0(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nbootstrap: {port: 0}\n")
    with subprocess.Popen(
        [sys.executable, "-m", "daemons.bootstrap", "--config", str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            assert ready["event"] == "daemon.ready"
            assert ready["port"] > 0
            os.kill(process.pid, signal.SIGHUP)
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()

"""Machines with pd installed from its wheel, as an operator does it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from tests.support.checkpoints import checkpoint
from tests.systemd.installed import Installed, installed
from tests.systemd.machine import Machine, booted, why_not

ROOT = Path(__file__).parents[2]
Boot = Callable[[Path, str], AbstractContextManager[Machine]]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, alone in a folder."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(target), str(ROOT)], check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that the service's user may read."""
    copy = shutil.copytree(checkpoint("llama"), tmp_path_factory.mktemp("model") / "llama")
    for path in copy.iterdir():
        path.chmod(0o644)
    return copy


@pytest.fixture(scope="session")
def boot(wheel: Path, model: Path) -> Boot:
    """Boots a machine that sees the wheel, a model, and the packages that pd depends on."""
    if why_not():
        pytest.skip(why_not())
    binds = {
        Path(sysconfig.get_path("purelib")): "/srv/packages",
        model: "/srv/model",
        wheel.parent: "/srv/wheel",
    }
    return lambda folder, name: booted(folder, name, binds)


@pytest.fixture(scope="session")
def host(boot: Boot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """One machine with a whole cluster, started by ``pdctl up``."""
    cluster = {
        "name": "units",
        "model": "/srv/model",
        "chaos": True,
        "key_file": "cluster.key",
        "engine": {"threads": 1, "kv_tokens": 2048, "page_size": 16, "dtype": "fp32"},
        "lb": {"poll_s": 0.2},
        "timers": {"drain_s": 20, "notice_s": 0.5, "heartbeat_s": 0.5, "lease_s": 3},
        "prefill": {"p0": {}},
        "decode": {"d0": {}},
    }
    with boot(tmp_path_factory.mktemp("host"), "host") as machine:
        there = installed(machine, yaml.safe_dump(cluster))
        there.machine.run("/opt/pd/bin/pdctl", "up", within_s=120)
        yield there

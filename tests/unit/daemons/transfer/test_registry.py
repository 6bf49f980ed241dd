"""Names of backends."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from daemons.cluster.errors import OperatorError
from daemons.transfer import registry
from daemons.transfer.config import TransferConfig
from daemons.transfer.loopback import Loopback


def outsiders(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    points = [EntryPoint(name, value, registry.GROUP) for name, value in targets.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def test_a_known_name_makes_its_backend() -> None:
    backend = registry.create(TransferConfig(backend="loopback"), "127.0.0.1")
    assert isinstance(backend, Loopback)
    backend.close()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(OperatorError) as caught:
        registry.create(TransferConfig(backend="carrier-pigeon"), "127.0.0.1")
    assert "carrier-pigeon" in caught.value.what
    assert "loopback, mooncake" in caught.value.hint


def test_an_outsiders_backend_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    outsiders(monkeypatch, mori="daemons.transfer.loopback:create")
    assert registry.names() == sorted([*registry.OURS, "mori"])
    registry.create(TransferConfig(backend="mori"), "127.0.0.1").close()


def test_an_outsider_cannot_take_one_of_our_names(monkeypatch: pytest.MonkeyPatch) -> None:
    outsiders(monkeypatch, loopback="nowhere:create")
    assert isinstance(registry.create(TransferConfig(backend="loopback"), "::1"), Loopback)


@pytest.mark.parametrize("target", ["nowhere.at.all:create", "daemons.transfer.loopback:nothing"])
def test_an_outsider_that_does_not_load_is_named(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    outsiders(monkeypatch, broken=target)
    with pytest.raises(OperatorError, match="'broken' does not load"):
        registry.create(TransferConfig(backend="broken"), "127.0.0.1")


def test_no_backend_is_imported_before_it_is_chosen() -> None:
    program = (
        "import sys; from daemons.transfer import registry; registry.names();"
        "print([m for m in sys.modules if 'mooncake' in m or m.endswith('loopback')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert run.stdout.strip() == "[]"

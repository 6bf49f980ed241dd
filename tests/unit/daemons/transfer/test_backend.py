"""The seam, as every backend of ours fills it."""

from __future__ import annotations

import inspect

import pytest

from daemons.transfer.backend import TransferBackend
from daemons.transfer.loopback import Loopback
from daemons.transfer.mooncake import Mooncake

VERBS = ("register", "write", "close")


@pytest.mark.parametrize("backend", [Loopback, Mooncake])
def test_a_backend_has_the_seams_verbs_and_names(backend: type) -> None:
    for verb in VERBS:
        ours = inspect.signature(getattr(backend, verb))
        assert ours == inspect.signature(getattr(TransferBackend, verb))
    assert isinstance(inspect.getattr_static(backend, "session"), property)
    assert isinstance(inspect.getattr_static(backend, "transport"), property)


@pytest.mark.parametrize("backend", [Loopback, Mooncake])
def test_a_backend_has_no_verb_beyond_the_seam(backend: type) -> None:
    public = {name for name in vars(backend) if not name.startswith("_")}
    assert public == {*VERBS, "session", "transport"}

"""The seam, as every backend of ours fills it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.transfer.auto import Auto
from daemons.transfer.backend import Comb, Copy, CopyTable, TransferBackend, WriteCut, table
from daemons.transfer.cma import Cma
from daemons.transfer.loopback import Loopback
from daemons.transfer.mooncake import Mooncake

VERBS = ("register", "write", "close", "transport_to")
BEYOND = {Cma: {"trouble"}}  # what is asked of it before a peer goes this way


@pytest.mark.parametrize("backend", [Auto, Cma, Loopback, Mooncake])
def test_a_backend_has_the_seams_verbs_and_names(backend: type) -> None:
    for verb in VERBS:
        ours = inspect.signature(getattr(backend, verb))
        assert ours == inspect.signature(getattr(TransferBackend, verb))
    assert isinstance(inspect.getattr_static(backend, "session"), property)
    assert isinstance(inspect.getattr_static(backend, "transport"), property)


@pytest.mark.parametrize("backend", [Auto, Cma, Loopback, Mooncake])
def test_a_backend_has_no_verb_beyond_the_seam(backend: type) -> None:
    public = {name for name in vars(backend) if not name.startswith("_")}
    assert public - BEYOND.get(backend, set()) == {*VERBS, "session", "transport"}


def test_a_table_reads_like_its_copies() -> None:
    copies = [Copy(1, 2, 3), Copy(40, 50, 60), Copy(7, 8, 9)]
    whole = table(copies)
    assert list(whole) == copies
    assert list(whole[1:]) == copies[1:]
    assert (len(whole), whole.total_bytes) == (3, 72)
    assert table(whole) is whole
    assert list(table([])) == []
    assert isinstance(whole, CopyTable)
    assert whole.source.dtype == np.int64


def test_a_cut_is_not_settled_unless_it_says_so() -> None:
    assert not WriteCut("why").settled
    assert WriteCut("why", settled=True).settled
    assert str(WriteCut("why")) == "why"


combs = st.builds(
    Comb,
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 99),
    st.integers(0, 99),
)


@given(st.lists(combs, max_size=5))
def test_a_table_of_combs_reads_like_the_copies_one_by_one(some: list[Comb]) -> None:
    expected = [
        Copy(one.source + i * one.source_step, one.target + i * one.target_step, one.length)
        for one in some
        for i in range(one.teeth)
    ]
    found = CopyTable.of(some)
    assert list(found) == expected
    assert len(found) == len(expected)
    assert found.total_bytes == sum(copy.bytes for copy in expected)
    assert list(found[1:3]) == expected[1:3]
    assert found.combs == tuple(some)

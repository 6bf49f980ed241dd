from __future__ import annotations

from daemons.transfer.native.build import COPIER
from tests.support.native import copier


def test_the_real_source_compiles_and_opens() -> None:
    assert copier()


def test_its_absence_is_told_with_what_it_costs() -> None:
    assert (COPIER.folder / COPIER.main).is_file()
    assert "numpy copies" in COPIER.hint

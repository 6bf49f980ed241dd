"""The breakages can be made: what each replaces stands where it says, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS, SIM, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_replaces_stands_once_in_its_file(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert mutant.test.startswith(SIM) or (ROOT / mutant.test.partition("::")[0]).exists()

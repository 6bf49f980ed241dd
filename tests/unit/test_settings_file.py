"""docs/SETTINGS.md says what the code does."""

from __future__ import annotations

import pytest

from tests.support.settings_table import ROOT, SECTIONS, fields, render


def test_the_settings_document_is_as_the_code_has_it() -> None:
    written = (ROOT / "docs/SETTINGS.md").read_text()
    assert written == render(), "python -m tests.support.settings_table > docs/SETTINGS.md"


@pytest.mark.parametrize(("path", "name"), [(path, name) for _, path, name in SECTIONS])
def test_every_struct_has_fields(path: str, name: str) -> None:
    assert list(fields(ROOT / path, name))

"""Words of options."""

from __future__ import annotations

from pdctl.forms import Export


def test_an_export_is_named_as_on_the_command_line() -> None:
    assert {form.value for form in Export} == {"perfetto", "html"}

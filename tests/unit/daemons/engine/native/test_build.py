from __future__ import annotations

from daemons.engine.native.build import KERNELS
from tests.support.native import library


def test_the_real_sources_compile() -> None:
    assert library().calls.pd_model_bytes() > 0


def test_all_sources_count_for_the_name() -> None:
    assert (KERNELS.folder / KERNELS.main).is_file()
    assert list(KERNELS.folder.glob("*.h"))
    assert "torch is used" in KERNELS.hint

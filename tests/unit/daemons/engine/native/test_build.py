from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.native import build as builds
from daemons.engine.native.build import build, library_path
from tests.support.native import library


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of our own, that say something short."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "library.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(builds, "SOURCES", folder)
    return folder


def test_the_kernels_lie_in_the_cache_under_a_name_of_their_sources(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = library_path()
    assert first.parent == tmp_path / "pd/native"
    (sources / "more.h").write_text("// another line\n")
    assert library_path() != first


def test_another_processor_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = library_path()
    monkeypatch.setattr(builds, "_processor", lambda: "one without vectors")
    assert library_path() != first


@pytest.mark.usefixtures("_own_cache", "sources")
def test_a_build_leaves_the_library_and_nothing_else() -> None:
    if not any(map(shutil.which, builds.COMPILERS)):
        pytest.skip("no compiler")
    path = build()
    assert path == library_path()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("_own_cache")
def test_sources_that_do_not_compile_are_told_with_what_it_costs(sources: Path) -> None:
    if not any(map(shutil.which, builds.COMPILERS)):
        pytest.skip("no compiler")
    (sources / "library.cpp").write_text("nonsense\n")
    with pytest.raises(OperatorError, match="could not build the kernels") as caught:
        build()
    assert "torch is used" in caught.value.hint
    assert not library_path().exists()


@pytest.mark.usefixtures("_own_cache")
def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(OperatorError, match="no no-such-compiler"):
        build()


def test_the_real_sources_compile() -> None:
    assert library().calls.pd_model_bytes() > 0

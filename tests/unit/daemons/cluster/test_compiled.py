from __future__ import annotations

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemons.cluster import compiled
from daemons.cluster.compiled import Compiled, build_once
from daemons.cluster.errors import OperatorError


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """A library that says something short, and a cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    return Compiled(folder, "answer.cpp", "the answer", "nobody will know")


def needs_a_compiler() -> None:
    if not any(map(shutil.which, compiled.COMPILERS)):
        pytest.skip("no compiler")


def test_a_library_lies_in_the_cache_under_a_name_of_its_sources(
    answer: Compiled, tmp_path: Path
) -> None:
    first = answer.path()
    assert first.parent == tmp_path / "pd/native"
    (answer.folder / "more.h").write_text("// another line\n")
    assert answer.path() != first


def test_another_processor_has_another_name(
    answer: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer.path()
    monkeypatch.setattr(compiled, "_processor", lambda: "one without vectors")
    assert answer.path() != first


def test_a_processor_that_nobody_tells_of_shares_its_library_with_no_other_host(
    answer: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    names = set()
    for host in ("one", "another"):
        monkeypatch.setattr(compiled, "open", hidden, raising=False)
        monkeypatch.setattr("platform.node", lambda host=host: host)
        names.add(answer.path())
    assert len(names) == 2


def test_a_build_leaves_the_library_and_nothing_else(answer: Compiled) -> None:
    needs_a_compiler()
    path = answer.build()
    assert path == answer.path()
    assert list(path.parent.iterdir()) == [path]


def test_sources_that_do_not_compile_are_told_with_what_it_costs(answer: Compiled) -> None:
    needs_a_compiler()
    (answer.folder / "answer.cpp").write_text("nonsense\n")
    with pytest.raises(OperatorError, match="could not build the answer") as caught:
        answer.build()
    assert caught.value.hint == "nobody will know"
    assert not answer.path().exists()


def test_without_a_compiler_it_says_so(answer: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(OperatorError, match="no no-such-compiler to build the answer"):
        answer.build()


def test_what_is_not_there_or_not_ours_to_read_is_not_found(
    answer: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer.found() is None
    answer.path().parent.mkdir(parents=True)
    answer.path().touch()
    assert answer.found() == answer.path()

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    assert answer.found() is None


def test_a_user_without_a_home_has_none_and_cannot_build(
    answer: Compiled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_a_compiler()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 5)
    assert answer.found() is None
    assert build_once(answer) == 1
    assert "has no home directory\nhint: XDG_CACHE_HOME=" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_told(
    answer: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_a_compiler()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OperatorError, match=r"no place for the answer in .*: Not a directory"):
        answer.build()


def test_a_library_is_on_disk_before_it_has_its_name(
    answer: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_a_compiler()
    kept: list[bool] = []
    monkeypatch.setattr("os.fsync", lambda file: kept.append(answer.path().exists()))
    answer.build()
    assert kept == [False]


def test_two_who_build_at_once_leave_one_whole_library(answer: Compiled) -> None:
    needs_a_compiler()
    with ThreadPoolExecutor(2) as both:
        paths = {done.result() for done in [both.submit(answer.build) for _ in range(2)]}
    (path,) = paths
    assert list(path.parent.iterdir()) == [path]
    assert ctypes.CDLL(str(path)).answer() == 42


def test_what_is_built_is_not_built_again(
    answer: Compiled, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer.path().parent.mkdir(parents=True)
    answer.path().touch()
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    assert build_once(answer) == 0
    assert capsys.readouterr().out == ""


def test_a_host_without_a_compiler_hears_what_it_costs(
    answer: Compiled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    assert build_once(answer) == 1
    assert "hint: nobody will know" in capsys.readouterr().err


def test_what_was_built_is_told(answer: Compiled, capsys: pytest.CaptureFixture[str]) -> None:
    needs_a_compiler()
    assert build_once(answer) == 0
    assert capsys.readouterr().out == f"built {answer.path()}\n"

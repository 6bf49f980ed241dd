from __future__ import annotations

import resource
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import read_settings
from daemons.prefill.config import PrefillConfig
from daemons.protocol.ids import PeerId
from daemons.runtime import worker


def cluster_file(folder: Path) -> Path:
    file = folder / "cluster.yaml"
    file.write_text("name: t\nprefill: {p0: {}}\ndecode: {d0: {}}\n")
    return file


def test_the_flags_of_a_rank_name_its_life(tmp_path: Path) -> None:
    seen: list[worker.Flags] = []
    argv = ["--config", str(cluster_file(tmp_path)), "--instance", "p0"]
    inner = ["--rank", "1", "--epoch", "77", "--link", "ipc:///x"]

    def serve(flags: worker.Flags) -> int:
        seen.append(flags)
        return 5

    assert worker.run("pd-prefill", "", serve, [*argv, *inner]) == 5
    assert worker.run("pd-prefill", "", serve, argv) == 5
    assert seen[0].me == PeerId("p0", 77, 1)
    assert seen[0].link == "ipc:///x"
    assert seen[1].link is None


def test_without_a_cache_the_settings_say_so_and_the_ranks_are_told(tmp_path: Path) -> None:
    seen: list[worker.Flags] = []

    def serve(flags: worker.Flags) -> int:
        seen.append(flags)
        return 0

    argv = ["--config", str(cluster_file(tmp_path)), "--instance", "p0"]
    worker.run("pd-prefill", "", serve, argv)
    worker.run("pd-prefill", "", serve, [*argv, "--no-prefix-cache"])
    settings = [read_settings(flags.file.cluster, "p0", PrefillConfig) for flags in seen]
    assert [one.prefix_cache for one in settings] == [True, False]
    assert [flags.handed_on for flags in seen] == [(), ("--no-prefix-cache",)]
    assert seen[1].file.hash == seen[0].file.hash


def test_a_bad_file_is_exit_78_with_what_and_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--config", str(tmp_path / "none.yaml"), "--instance", "p0"]
    assert worker.run("pd-prefill", "", lambda _: 0, argv) == 78
    said = capsys.readouterr().err
    assert said.startswith("pd-prefill: cannot read ")
    assert "\nhint: " in said


def test_an_operator_error_of_the_daemon_is_exit_78_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(_: worker.Flags) -> int:
        raise OperatorError("no model x", "make it")

    argv = ["--config", str(cluster_file(tmp_path)), "--instance", "p0"]
    assert worker.run("pd-prefill", "", serve, argv) == 78
    assert capsys.readouterr().err == "pd-prefill: no model x\nhint: make it\n"


def test_a_taken_address_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(_: worker.Flags) -> int:
        raise OSError(98, "Address already in use")

    argv = ["--config", str(cluster_file(tmp_path)), "--instance", "p0"]
    assert worker.run("pd-prefill", "", serve, argv) == 1
    assert "Address already in use" in capsys.readouterr().err


def test_a_worker_may_open_as_many_files_as_the_host_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        assert worker.use_all_descriptors() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

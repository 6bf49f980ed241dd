from __future__ import annotations

import msgspec
import pytest

from daemons.cluster.errors import OperatorError
from daemons.engine.config import EngineConfig
from daemons.engine.cores import listed, shared_out

CORES = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("cores", "found"),
    [("", ()), ("auto", ()), ("3", (3,)), ("0-2,8", (0, 1, 2, 8)), ("1,0-1", (1, 0))],
)
def test_a_list_of_cores_is_read(cores: str, found: tuple[int, ...]) -> None:
    assert listed(cores) == found


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(OperatorError, match="3-1 ends before it begins"):
        listed("3-1")


@pytest.mark.parametrize("cores", ["0-", "a", "0;1", "-1", "0,,1", " 1"])
def test_a_list_of_another_form_is_no_setting(cores: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"cores": cores}, EngineConfig)


def test_what_is_said_stays() -> None:
    config = EngineConfig(threads=2, cores="1,3")
    assert shared_out(config, CORES, 0, 2) == config
    assert shared_out(EngineConfig(), CORES, 1, 2) == EngineConfig()


def test_no_threads_means_ones_share_of_the_cores_and_at_least_one() -> None:
    assert shared_out(EngineConfig(threads=0), CORES, 0, 2).threads == 2
    assert shared_out(EngineConfig(threads=0), CORES, 0, 9).threads == 1
    assert shared_out(EngineConfig(threads=0, cores="0-2"), CORES, 0, 9).threads == 3


def test_shares_do_not_overlap() -> None:
    auto = EngineConfig(threads=0, cores="auto")
    assert [shared_out(auto, CORES, index, 2).cores for index in (0, 1)] == ["0,1", "2,3"]
    two = EngineConfig(threads=1, cores="auto")
    assert [shared_out(two, [4, 6, 7], index, 3).cores for index in range(3)] == ["4", "6", "7"]


def test_nobody_is_bound_where_there_are_more_threads_than_cores() -> None:
    auto = EngineConfig(threads=1, cores="auto")
    assert {shared_out(auto, [0, 1], index, 3).cores for index in range(3)} == {""}

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import read_settings
from daemons.cluster.model import Cluster
from daemons.lb.config import LbConfig, StaticWorker


def test_an_empty_section_is_the_default() -> None:
    assert read_settings(Cluster(name="c"), "lb", LbConfig) == LbConfig()


def test_workers_can_be_listed_by_hand() -> None:
    listed = {"instance": "p0", "role": "prefill", "address": "10.0.0.1", "port": 80}
    config = read_settings(Cluster(name="c", lb={"static_workers": [listed]}), "lb", LbConfig)
    assert config.static_workers == (
        StaticWorker(instance="p0", role="prefill", address="10.0.0.1", port=80),
    )


@pytest.mark.parametrize(
    "section",
    [
        {"polcy": "x"},
        {"poll_s": 0},
        {"static_workers": [{"instance": "lb", "role": "lb", "address": "a", "port": 1}]},
        {"static_workers": [{"instance": "p0", "role": "prefill", "address": "a", "port": 0}]},
    ],
)
def test_a_wrong_setting_is_the_operators_error(section: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match="lb:"):
        read_settings(Cluster(name="c", lb=section), "lb", LbConfig)

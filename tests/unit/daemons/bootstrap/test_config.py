import pytest

from daemons.bootstrap.config import BootstrapConfig
from daemons.cluster.errors import OperatorError
from daemons.cluster.load import read_settings
from daemons.cluster.model import Cluster


def test_an_empty_section_is_the_default() -> None:
    config = read_settings(Cluster(name="c"), "bootstrap", BootstrapConfig)
    assert config == BootstrapConfig()
    assert (config.port, config.host) == (8998, "local")


@pytest.mark.parametrize(
    "section", [{"prot": 1}, {"port": 70000}, {"forget_s": 0}, {"log_level": "loud"}]
)
def test_a_wrong_setting_is_the_operators_error(section: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match="bootstrap:"):
        read_settings(Cluster(name="c", bootstrap=section), "bootstrap", BootstrapConfig)

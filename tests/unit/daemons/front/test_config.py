"""Settings of a front."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from daemons.front.config import FrontConfig
from tests.support.front_bench import front_config


def test_a_config_needs_only_what_has_no_sensible_default(tmp_path: Path) -> None:
    config = front_config(tmp_path, "http://127.0.0.1:1")
    assert (config.bind, config.port, config.advertise) == ("127.0.0.1", 0, "127.0.0.1")


@pytest.mark.parametrize(
    "wrong", [{"instance": "D 0"}, {"port": 70000}, {"max_body_bytes": 1}, {"no_such": 1}]
)
def test_a_config_that_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        front_config(tmp_path, "http://127.0.0.1:1", **wrong)


def test_every_field_is_described() -> None:
    source = Path(str(__import__(FrontConfig.__module__, fromlist=["x"]).__file__)).read_text()
    obvious = {"instance", "timers", "bootstrap_port"}
    lines = {line.strip().split(":")[0]: line for line in source.splitlines()}
    for name in set(FrontConfig.__struct_fields__) - obvious:
        assert "#" in lines[name] or name == "bind", name

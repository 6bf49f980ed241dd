"""From a cluster file to the settings of a front."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from daemons.cluster.errors import OperatorError
from daemons.cluster.key import load_key, make_key
from daemons.cluster.load import load
from daemons.cluster.worker import Timers
from daemons.front.program import Face, front_config
from daemons.protocol.topology import Role
from daemons.runtime.worker import Flags
from tests.support.tiny_model import tiny_model

CLUSTER = """
name: test
model: {model}
hosts:
  here: {{address: 10.0.0.5}}
bootstrap: {{host: here, port: 8123}}
decode:
  d0: {{host: here}}
"""


def flags(tmp_path: Path, model: str) -> Flags:
    if Path(model).is_dir():
        (Path(model) / "model.safetensors").touch()  # no front reads it
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER.format(model=model))
    return Flags(load(file), "d0", 0, 0, None)


def face(bind: str = "", advertise: str = "") -> Face:
    return Face("here", bind, 0, advertise, Timers(total_s=5.0))


def test_the_front_gets_its_addresses_from_the_file(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny")
    given = flags(tmp_path, str(model))
    config = front_config(given, Role.DECODE, face())
    assert (config.bind, config.advertise) == ("10.0.0.5", "10.0.0.5")
    assert (config.bootstrap_url, config.bootstrap_port) == ("http://10.0.0.5:8123", 8123)
    assert (config.model_dir, config.model_name) == (str(model), "tiny")
    assert config.host_addresses == {"here": "10.0.0.5"}
    assert (config.config_hash, config.timers.total_s) == (given.file.hash, 5.0)
    own = front_config(given, Role.DECODE, face("0.0.0.0", "10.1.1.1"))
    assert (own.bind, own.advertise) == ("0.0.0.0", "10.1.1.1")


def test_the_rank_runs_the_same_program_in_the_same_life(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny")
    config = front_config(flags(tmp_path, str(model)), Role.DECODE, face())
    (argv,) = config.rank_argv
    assert argv[:3] == (sys.executable, "-m", "daemons.decode")
    assert argv[argv.index("--epoch") + 1] == str(config.epoch)
    assert argv[argv.index("--instance") + 1] == "d0"
    told = replace(flags(tmp_path, str(model)), handed_on=("--no-prefix-cache",))
    assert "--no-prefix-cache" in front_config(told, Role.DECODE, face()).rank_argv[0]
    assert "--no-prefix-cache" not in argv


def test_a_model_that_is_not_there_is_the_operators_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError):
        front_config(flags(tmp_path, str(tmp_path / "nothing")), Role.DECODE, face())


def test_a_front_and_its_rank_find_the_same_key(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    given = flags(tmp_path, str(tiny_model(tmp_path / "tiny")))
    given.file.path.write_text(given.file.path.read_text() + "key_file: key\n")
    keyed = Flags(load(given.file.path), "d0", 0, 0, None)
    config = front_config(keyed, Role.DECODE, face())
    assert config.key == load_key(keyed.file.cluster)
    assert config.key is not None
    assert config.key.secret.decode() not in repr(config)


def test_a_key_that_cannot_be_read_is_the_operators_error(tmp_path: Path) -> None:
    given = flags(tmp_path, str(tiny_model(tmp_path / "tiny")))
    given.file.path.write_text(given.file.path.read_text() + "key_file: none\n")
    with pytest.raises(OperatorError, match="no key in"):
        front_config(Flags(load(given.file.path), "d0", 0, 0, None), Role.DECODE, face())

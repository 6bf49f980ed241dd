from __future__ import annotations

from pathlib import Path

from daemons.cluster.load import load
from daemons.cluster.worker import Timers
from daemons.front.program import Face, front_config
from daemons.protocol.topology import Role
from daemons.runtime.worker import Flags
from tests.support.checkpoints import checkpoint


def test_a_front_starts_its_rank_by_the_same_program_in_the_same_life(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        f"name: t\nmodel: {checkpoint('llama')}\n"
        "hosts: {n1: {address: 10.0.0.1}}\n"
        "bootstrap: {host: n1, port: 9000}\n"
        "prefill: {p0: {host: n1}}\n"
    )
    face = Face("n1", "", 0, "", Timers())
    config = front_config(Flags(load(file), "p0", 0, 0, None), Role.PREFILL, face)
    (argv,) = config.rank_argv
    assert argv[1:3] == ("-m", "daemons.prefill")
    assert argv[argv.index("--epoch") + 1] == str(config.epoch)
    assert argv[argv.index("--instance") + 1] == "p0"
    assert config.bootstrap_url == "http://10.0.0.1:9000"
    assert (config.bind, config.advertise) == ("10.0.0.1", "10.0.0.1")
    assert config.model_name == checkpoint("llama").name


def test_bind_and_advertise_of_the_instance_go_before_the_hosts_address(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"name: t\nmodel: {checkpoint('llama')}\ndecode: {{d0: {{}}}}\n")
    face = Face("local", "0.0.0.0", 8101, "10.9.9.9", Timers())
    config = front_config(Flags(load(file), "d0", 0, 0, None), Role.DECODE, face)
    assert (config.bind, config.port, config.advertise) == ("0.0.0.0", 8101, "10.9.9.9")

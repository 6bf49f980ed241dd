"""What an instance tells the phone book."""

from __future__ import annotations

from pathlib import Path

import msgspec

from daemons.front.registration import disagreement, registrations
from daemons.protocol.topology import Shape, State
from tests.support.fake_rank import FINGERPRINT, rank_ready
from tests.support.front_bench import front_config

CONFIG = front_config(Path("model"), "http://127.0.0.1:1", advertise="10.0.0.7")
TWO = Shape(attn_tp_size=2)


def test_each_rank_is_registered_with_its_place_its_port_and_the_state() -> None:
    ready = [rank_ready(n, shape=TWO) for n in range(2)]
    first, second = registrations(CONFIG, ready, State.DRAINING, 8080)
    assert (first.attn_tp_rank, second.attn_tp_rank) == (0, 1)
    assert (first.rank_port, second.rank_port) == (4000, 4001)
    assert (second.rank_ip, second.http_host, second.http_port) == ("10.0.0.7", "10.0.0.7", 8080)
    assert (second.state, second.epoch, second.fingerprint) == (State.DRAINING, 1, FINGERPRINT)


def test_nothing_is_registered_before_a_rank_is_ready() -> None:
    assert registrations(CONFIG, [], State.STARTING, 8080) == []


def test_ranks_of_one_instance_agree() -> None:
    assert disagreement([rank_ready()]) == ""
    assert disagreement([rank_ready(n, shape=TWO) for n in range(2)]) == ""


def test_ranks_that_do_not_belong_together_are_told_apart() -> None:
    other = msgspec.structs.replace(
        rank_ready(1, shape=TWO), fingerprint=msgspec.structs.replace(FINGERPRINT, dtype="bf16")
    )
    assert "fingerprints" in disagreement([rank_ready(0, shape=TWO), other])
    assert "shapes" in disagreement([rank_ready(0), rank_ready(1, shape=TWO)])
    assert "1 ranks" in disagreement([rank_ready(0, shape=TWO)])
    assert "numbered [0, 0]" in disagreement([rank_ready(0, shape=TWO), rank_ready(0, shape=TWO)])

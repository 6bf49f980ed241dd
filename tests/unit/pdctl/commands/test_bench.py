from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from daemons.engine.config import EngineConfig
from pdctl.commands import bench
from pdctl.commands.bench import Device, Dtype, Kernels
from tests.support.checkpoints import checkpoint
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]
SMALL = ("--rooms", "1,2", "--contexts", "32", "--prompts", "48", "--samples", "1")


def test_the_engine_is_measured_and_the_document_keeps_its_contract(
    pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    model = checkpoint("llama")
    said = pdctl("bench", "engine", "-o", "json", "--model", model, "--threads", 1, *SMALL)
    document = keeps_contract("bench-engine", said.out)
    assert [row["rooms"] for row in document["decode"]] == [1, 2]
    assert [row["tokens"] for row in document["prefill"]] == [48]
    assert document["settings"]["threads"] == 1


def test_a_row_for_each_cell_under_what_the_host_can_do(pdctl: Pdctl) -> None:
    said = pdctl("bench", "engine", "--model", checkpoint("llama"), "--threads", 1, *SMALL)
    lines = said.out.splitlines()
    assert "GFLOP/s" in lines[0]
    assert [line.split()[:3] for line in lines[3:]] == [
        ["decode", "1", "32"],
        ["decode", "2", "32"],
        ["prefill", "1", "48"],
    ]


def test_device_and_weights_are_the_engines_own_words(
    pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    asked = ("--device", "cpu", "--weights", "int8", "--kernels", "torch", "--threads", 1)
    said = pdctl("bench", "engine", "-o", "json", "--model", checkpoint("llama"), *asked, *SMALL)
    settings = keeps_contract("bench-engine", said.out)["settings"]
    assert (settings["device"], settings["weights"]) == ("cpu", "int8")
    fields = {"device": Device, "dtype": Dtype, "weights": bench.Weights, "kernels": Kernels}
    hints = get_type_hints(EngineConfig)
    for name, words in fields.items():
        assert sorted(words) == sorted(get_args(hints[name])), name


def test_a_word_that_the_engine_does_not_know_is_the_callers_mistake(pdctl: Pdctl) -> None:
    assert pdctl("bench", "engine", "--weights", "int3").code == 2


def test_a_model_that_is_not_there_is_told_in_two_lines(pdctl: Pdctl) -> None:
    said = pdctl("bench", "engine", "--model", "no-such-model")
    assert said.code == 1
    assert "no model no-such-model" in said.err
    assert "hint: model: is" in said.err

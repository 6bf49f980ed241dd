from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemons.engine.bench import bits_of, calibration, main, products, seen, seen_on_average
from daemons.engine.models import read_spec
from tests.support.checkpoints import checkpoint


def test_products_are_the_weights_that_a_token_meets() -> None:
    # hidden 64, 4 + 2 heads of 16, intermediate 96, 2 layers
    assert products(read_spec(checkpoint("llama"))) == 2 * (2 * 64 * 6 * 16 + 3 * 64 * 96)


def test_only_chosen_experts_count() -> None:
    spec = read_spec(checkpoint("qwen3-moe"))
    assert spec.experts is not None
    every = spec.experts.experts * 3 * spec.hidden_size * spec.experts.intermediate_size
    assert products(spec) < spec.model.layers * every


def test_rounded_weights_are_read_in_their_own_bits() -> None:
    assert bits_of("auto", 2) == (16, 16)
    assert bits_of("int8", 2) == (8, 8)
    assert bits_of("int4", 2) == (5, 8)  # a scale and a lowest value for 32 of them


def test_a_calibration_finds_the_rates_that_times_were_made_of() -> None:
    decode = [
        {
            "rooms": rooms,
            "context": context,
            "step_s": 0.01 + 0.002 * rooms + 1e-6 * rooms * context,
        }
        for rooms in (1, 8, 32)
        for context in (128, 2048)
    ]
    prefill = [{"tokens": n, "prompt_s": 1e-3 * n + 1e-7 * n * n} for n in (512, 2048)]
    found = calibration(decode, prefill)
    assert list(found["decode_step_s"].values()) == pytest.approx([0.01, 0.002, 1e-6])
    assert list(found["prefill_s"].values()) == pytest.approx([1e-3, 1e-7])


def test_a_model_that_is_not_there_is_the_operators_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path / "absent")]) == 1
    assert "hint:" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [1, 7, 20, 21, 50])
def test_what_tokens_meet_is_counted_layer_by_layer(tokens: int) -> None:
    windows = (None, 20, 7)
    each = [[min(at, window or at) for window in windows] for at in range(1, tokens + 1)]
    assert seen(windows, tokens) == sum(each[-1])
    exact = sum(map(sum, each)) / tokens
    assert seen_on_average(windows, tokens) == pytest.approx(exact, abs=len(windows) / 2)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_what_is_measured_is_one_json_document(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(checkpoint(kind)), "--threads", "1", "--rooms", "2"]
    assert main([*arguments, "--contexts", "16,60", "--prompts", "80", "--samples", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "bench-engine"
    assert [row["context"] for row in found["decode"]] == [16, 60]

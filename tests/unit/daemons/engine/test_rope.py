from __future__ import annotations

import math

import pytest
import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.rope import Rope, frequencies, rope_of, rotate_, turns

LLAMA3 = Rope(10000.0, "llama3", 8.0, 1.0, 4.0, 64)
YARN = Rope(10000.0, "yarn", 4.0, original_positions=64, beta_fast=16.0)


def test_the_first_pair_turns_by_one_radian_and_the_last_by_almost_none() -> None:
    angles = frequencies(Rope(10000.0), 8)
    assert angles.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_linear_scaling_slows_every_pair() -> None:
    slowed = frequencies(Rope(10000.0, "linear", 4.0), 8)
    assert slowed.tolist() == pytest.approx([0.25, 0.025, 0.0025, 0.00025])


def test_llama3_keeps_fast_pairs_slows_slow_ones_and_blends_between() -> None:
    plain, scaled = frequencies(Rope(10000.0), 64), frequencies(LLAMA3, 64)
    waves = 64 * plain / (2 * math.pi)  # turns within the original context
    ratio = scaled / plain
    assert torch.allclose(ratio[waves >= 4], torch.tensor(1.0))
    assert torch.allclose(ratio[waves <= 1], torch.tensor(1 / 8))
    between = ratio[(waves > 1) & (waves < 4)]
    assert len(between) > 0
    assert bool(((between > 1 / 8) & (between < 1)).all())


def test_yarn_keeps_fast_pairs_slows_slow_ones_and_blends_between() -> None:
    plain, scaled = frequencies(Rope(10000.0), 64), frequencies(YARN, 64)
    waves = 64 * plain / (2 * math.pi)
    ratio = scaled / plain
    assert torch.allclose(ratio[waves >= 16], torch.tensor(1.0))
    assert torch.allclose(ratio[waves <= 0.5], torch.tensor(1 / 4))
    assert bool((ratio.diff() <= 1e-6).all())
    assert bool(((ratio > 0.26) & (ratio < 0.99)).any())


@pytest.mark.parametrize(
    ("words", "amplitude"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 0.7}, 0.7),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_makes_cosines_and_sines_larger(words: dict[str, float], amplitude: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **words}
    rope = rope_of({"rope_scaling": scaling})
    assert rope.amplitude == pytest.approx(amplitude)
    cosine, sine = turns(torch.tensor([3]), frequencies(rope, 8), torch.float32, rope.amplitude)
    assert torch.allclose(cosine**2 + sine**2, torch.tensor(amplitude**2))


def test_divisors_slow_each_pair_by_its_own() -> None:
    plain = frequencies(Rope(10000.0), 4)
    assert frequencies(Rope(10000.0, divisors=(1.0, 8.0)), 4).tolist() == pytest.approx(
        [plain[0].item(), plain[1].item() / 8]
    )


def test_a_rotation_is_that_of_complex_numbers() -> None:
    heads = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    angles = frequencies(Rope(10000.0), 8)
    positions = torch.tensor([0, 5, 100])
    numbers = torch.complex(heads[..., :4], heads[..., 4:])
    by = torch.polar(torch.ones(3, 4), torch.outer(positions.float(), angles)).unsqueeze(1)
    wanted = numbers * by
    rotate_(heads, turns(positions, angles, torch.float32))
    assert torch.allclose(heads, torch.cat((wanted.real, wanted.imag), dim=-1), atol=1e-5)


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({"rope_theta": 5e5}, Rope(5e5)),
        ({}, Rope(1e4)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope(1e4, "linear", 2.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, Rope(1e6)),
        (
            {
                "rope_theta": 1e4,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            LLAMA3,
        ),
    ],
)
def test_both_spellings_of_a_configuration_are_read(config: dict[str, object], rope: Rope) -> None:
    assert rope_of(config) == rope


@pytest.mark.parametrize(
    "config",
    [{"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, {"partial_rotary_factor": 0.5}],
)
def test_a_variant_that_is_not_served_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match="not served"):
        rope_of(config)

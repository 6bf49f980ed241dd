from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from daemons.engine.config import EngineConfig


def test_defaults_are_valid_settings() -> None:
    assert msgspec.convert({}, EngineConfig) == EngineConfig()


@pytest.mark.parametrize(
    "setting",
    [
        {"page_size": 0},
        {"kv_tokens": -1},
        {"kv_fraction": 1.0},
        {"kv_fraction": 0.0},
        {"dtype": "fp8"},
        {"device": "tpu"},
        {"unknown": 1},
    ],
)
def test_a_setting_out_of_range_is_refused(setting: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(setting, EngineConfig)


def test_the_settings_are_readable_without_torch() -> None:
    code = "import sys, daemons.engine.config, daemons.engine.step; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"

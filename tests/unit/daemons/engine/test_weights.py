from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemons.cluster.errors import OperatorError
from daemons.engine.device import Place
from daemons.engine.weights import INDEX, Checkpoint, read_json
from tests.support.checkpoints import checkpoint, write_checkpoint

PLACE = Place(torch.device("cpu"), torch.float32)
NORM = "model.norm.weight"


def split(source: Path, target: Path) -> None:
    """Write the tensors of ``source`` into two files with an index."""
    target.mkdir()
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    where = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: tensors[n] for n in names if where[n] == file}, target / file)
    (target / INDEX).write_text(json.dumps({"weight_map": where}))


def test_a_tensor_is_taken_by_name_and_shape_in_the_wanted_type() -> None:
    bf16 = Place(torch.device("cpu"), torch.bfloat16)
    taken = Checkpoint(checkpoint("llama"), bf16).take(NORM, (64,))
    stored = load_file(checkpoint("llama") / "model.safetensors")[NORM]
    assert taken.dtype is torch.bfloat16
    assert torch.equal(taken, stored.bfloat16())


def test_a_taken_tensor_is_a_copy_that_outlives_the_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    taken = Checkpoint(tmp_path, PLACE).take(NORM, (64,))
    before = taken.clone()
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert torch.equal(taken, before)


def test_rows_are_taken_below_each_other() -> None:
    weights = Checkpoint(checkpoint("llama"), PLACE)
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    fused = weights.take_rows(names, (64, 32, 32), 64)
    assert torch.equal(fused[64:96], weights.take(names[1], (32, 64)))


def test_shards_with_an_index_hold_the_same_model(tmp_path: Path) -> None:
    split(checkpoint("llama"), tmp_path / "sharded")
    whole = Checkpoint(checkpoint("llama"), PLACE)
    sharded = Checkpoint(tmp_path / "sharded", PLACE)
    assert torch.equal(whole.take(NORM, (64,)), sharded.take(NORM, (64,)))
    assert whole.digest(b"facts") == sharded.digest(b"facts")


def test_the_digest_tells_facts_and_weights_apart(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama", seed=1)
    weights, others = Checkpoint(checkpoint("llama"), PLACE), Checkpoint(tmp_path, PLACE)
    digests = {weights.digest(b"a"), weights.digest(b"b"), others.digest(b"a")}
    assert len(digests) == 3
    assert all(len(digest) == 16 for digest in digests)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(OperatorError, match=r"lack model\.nothing"):
        Checkpoint(checkpoint("llama"), PLACE).take("model.nothing", (1,))


def test_a_wrong_shape_is_told_with_both_values() -> None:
    with pytest.raises(OperatorError, match=r"has shape \[64\].*\[65\]"):
        Checkpoint(checkpoint("llama"), PLACE).take(NORM, (65,))


def test_a_torn_file_and_an_empty_directory_are_the_operators_errors(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no \\*\\.safetensors"):
        Checkpoint(tmp_path, PLACE)
    whole = (checkpoint("llama") / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OperatorError, match=r"cannot read .*model\.safetensors"):
        Checkpoint(tmp_path, PLACE)


def test_json_is_an_object_or_the_operators_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path, optional=True) == {}
    for content in (None, "[1]", "{"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(OperatorError):
            read_json(path)
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}


MEASURE = """
import sys, torch
from pathlib import Path
from daemons.engine.device import Place
from daemons.engine.models import load_model

def now(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2]]
place = Place(torch.device("cpu"), dtype)
torch.nn.functional.linear(torch.ones(4, 1024), torch.ones(1024, 1024))  # oneDNN's own memory
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = now("VmRSS")
model, _ = load_model(Path(sys.argv[1]), place)
print(now("VmHWM") - before, now("VmRSS") - before)
"""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_loading_holds_the_weights_once(tmp_path: Path, dtype: str) -> None:
    sizes = {"hidden_size": 1024, "head_dim": 256, "intermediate_size": 4096}
    write_checkpoint(tmp_path / "whole", "llama", num_hidden_layers=6, **sizes)
    split(tmp_path / "whole", tmp_path / "sharded")
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "sharded")
    stored = sum(path.stat().st_size for path in (tmp_path / "sharded").glob("*.safetensors"))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "sharded"), dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    peak, kept = (int(word) for word in done.stdout.split())
    weights = stored if dtype == "fp32" else stored // 2
    largest = 2 * 4096 * 1024 * 4  # gate and up of a layer, in fp32
    print(f"{dtype}: weights {weights >> 20}, peak {peak >> 20}, kept {kept >> 20} MiB")
    assert kept <= weights + 3 * largest  # what the allocator and oneDNN keep for themselves
    assert peak <= weights + 4 * largest

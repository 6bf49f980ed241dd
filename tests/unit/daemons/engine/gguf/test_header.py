from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from daemons.cluster.errors import OperatorError
from daemons.engine.gguf.header import read_header


def write(path: Path) -> Path:
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(3)
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_token_list(["a", "ü"])
    writer.add_token_types([1, 3])
    writer.add_tensor("x.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_facts_and_the_places_of_tensors_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf")
    header = read_header(path)
    assert header.architecture == "llama"
    assert (header.own("block_count"), header.own("nothing", 7)) == (3, 7)
    assert (header.facts["a.float"], header.facts["a.bool"]) == (0.5, True)
    assert header.facts["tokenizer.ggml.tokens"] == ["a", "ü"]
    assert header.facts["tokenizer.ggml.token_type"] == [1, 3]
    stored = header.tensors["x.weight"]
    assert (stored.shape, stored.kind) == ((2, 3), 0)
    assert np.fromfile(path, np.float32, 6, offset=stored.offset).tolist() == list(range(6))


def test_what_is_no_whole_gguf_file_is_the_operators_error(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.gguf").read_bytes()
    for content in (b"", b"GGU", b"GGML" + whole[4:], whole[:4] + b"\x09" + whole[5:], whole[:90]):
        (tmp_path / "y.gguf").write_bytes(content)
        with pytest.raises(OperatorError, match=r"cannot read .*y\.gguf"):
            read_header(tmp_path / "y.gguf")
    with pytest.raises(OperatorError, match="cannot read"):
        read_header(tmp_path / "absent.gguf")

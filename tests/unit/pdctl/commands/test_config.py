"""The cluster file, checked and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemons.cluster.key import make_key
from pdctl.errors import Exit
from tests.support.fake_fleet import Said

Pdctl = Callable[..., Said]
TEXT = """
name: c
engine: {page_size: 64}
prefill: {p0: {engine: {threads: 2}}}
decode: {d0: {}}
"""


def a_file(folder: Path, text: str = TEXT) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def test_a_right_file_is_called_right(tmp_path: Path, pdctl: Pdctl) -> None:
    said = pdctl("config", "check", "-c", a_file(tmp_path))
    assert said.code == Exit.OK
    assert said.err.endswith("is right: bootstrap, p0, d0, lb\n")


def test_a_wrong_setting_is_exit_8_with_its_place(tmp_path: Path, pdctl: Pdctl) -> None:
    said = pdctl("config", "check", "-c", a_file(tmp_path, TEXT + "lb: {port: many}\n"))
    assert said.code == Exit.BAD_CONFIG
    assert "lb: " in said.err
    assert "port" in said.err


def test_a_file_that_can_serve_nothing_is_remarked(tmp_path: Path, pdctl: Pdctl) -> None:
    said = pdctl("config", "check", "-c", a_file(tmp_path, "name: c\nprefill: {p0: {}}\n"))
    assert said.code == Exit.OK
    assert "note: it has no decode" in said.err


def test_each_value_has_its_origin(
    tmp_path: Path, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    said = pdctl("config", "view", "-c", a_file(tmp_path), "-o", "json")
    p0 = keeps_contract("config", said.out)["daemons"]["p0"]
    assert p0["engine.page_size"] == {"value": 64, "origin": "engine"}
    assert p0["engine.threads"] == {"value": 2, "origin": "prefill.p0"}
    assert p0["engine.dtype"] == {"value": "auto", "origin": "default"}
    assert p0["model"]["origin"] == "default"


def test_a_model_that_the_file_names_is_from_the_file(
    tmp_path: Path, pdctl: Pdctl, keeps_contract: Callable[..., Any]
) -> None:
    path = a_file(tmp_path, TEXT + "model: mine\n")
    document = keeps_contract("config", pdctl("config", "view", "-c", path, "-o", "json").out)
    assert document["daemons"]["d0"]["model"] == {"value": "mine", "origin": "model"}


def test_origins_are_a_column_when_asked_for(tmp_path: Path, pdctl: Pdctl) -> None:
    path = a_file(tmp_path)
    assert "ORIGIN" not in pdctl("config", "view", "-c", path).out
    out = pdctl("config", "view", "-c", path, "--origin", "-i", "p0").out
    assert ["p0", "engine.threads", "2", "prefill.p0"] in [
        line.split() for line in out.splitlines()
    ]
    assert "d0 " not in out


def test_a_daemon_that_is_not_in_the_file_is_refused(tmp_path: Path, pdctl: Pdctl) -> None:
    assert pdctl("config", "view", "-c", a_file(tmp_path), "-i", "p9").code == Exit.BAD_CONFIG


def test_the_key_is_shown_as_set_with_a_hash_and_never_itself(tmp_path: Path, pdctl: Pdctl) -> None:
    unset = pdctl("config", "view", "-c", a_file(tmp_path), "-o", "json")
    assert json.loads(unset.out)["daemons"]["p0"]["key"] == {"value": "unset", "origin": "-"}
    key = make_key(tmp_path / "key")
    path = a_file(tmp_path, TEXT + "key_file: key\n")
    for output in ("table", "wide", "json", "yaml"):
        said = pdctl("config", "view", "-c", path, "-o", output)
        assert said.code == Exit.OK
        assert f"set, hash {key.short_hash}" in said.out
        assert key.secret.decode() not in said.out


def test_a_key_that_others_may_read_is_exit_8_with_the_cure(tmp_path: Path, pdctl: Pdctl) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    said = pdctl("config", "check", "-c", a_file(tmp_path, TEXT + "key_file: key\n"))
    assert said.code == Exit.BAD_CONFIG
    assert f"hint: chmod 600 {tmp_path / 'key'}" in said.err

"""What never leaves a host in a bundle."""

from __future__ import annotations

import base64
import io
import tarfile

import pytest

from daemons.cluster.key import ClusterKey
from daemons.protocol.topology import Role
from pdctl.bundle import GONE, packed, scrubbed, spellings, without_secrets

KEY = ClusterKey(b"planted-secret-of-more-than-32-bytes-xyz", "test")


@pytest.mark.parametrize(
    "said",
    [
        KEY.secret.decode(),
        KEY.secret.hex(),
        base64.b64encode(KEY.secret).decode(),
        KEY.token(Role.DECODE),
        KEY.plane.hex(),
        repr(KEY.plane),
    ],
)
def test_a_secret_in_any_usual_spelling_is_left_out(said: str) -> None:
    assert said not in scrubbed(f"a line with {said} in it", spellings(KEY))


def test_what_looks_like_a_shown_key_is_left_out_too() -> None:
    assert scrubbed("Authorization: Bearer abcdefgh1234", []) == f"Authorization: Bearer {GONE}"
    assert "sk-12345678" not in scrubbed('{"api_key": "sk-12345678"}', [])


def test_values_that_are_called_secret_are_left_out_and_others_stay() -> None:
    document = {
        "key_file": "cluster.key",
        "engine": {"kv_tokens": 2048, "hf_token": "hf_abc"},
        "lb": [{"api_key": "sk-1"}],
        "retract_tokens": 5,
    }
    assert without_secrets(document) == {
        "key_file": "cluster.key",
        "engine": {"kv_tokens": 2048, "hf_token": GONE},
        "lb": [{"api_key": GONE}],
        "retract_tokens": 5,
    }


def test_every_text_is_scrubbed_on_its_way_in() -> None:
    raw = packed("b", {"logs/p0.log": f"x {KEY.secret.decode()} y"}, spellings(KEY))
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        (entry,) = archive.getmembers()
        assert entry.name == "b/logs/p0.log"
        file = archive.extractfile(entry)
        assert file is not None
        assert file.read().decode() == f"x {GONE} y"

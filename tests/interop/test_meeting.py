"""A pair that a router names by the prefill's own host and a port meets across addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.cluster import Cluster, eventually, post

from .conftest import PREFILLS

pytestmark = pytest.mark.live
NOBODY = "127.0.0.9"  # where the test listens, and nobody registered


def face(cluster: Cluster, name: str) -> tuple[str, int]:
    row = cluster.instances()[name]
    return row["http_host"], row["http_port"]


def as_a_router(
    cluster: Cluster, pair: Sequence[str], room: Any, host: str, port: int | None, **body: Any
) -> list[tuple[int, Any]]:
    """Post the same body to both legs, and return what each answers."""
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    meeting = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
    said = {"sampling_params": sampling, **body, **meeting}
    answers: dict[str, tuple[int, Any]] = {}

    def ask(name: str) -> None:
        answers[name] = post(f"{cluster.url(name)}/generate", said, 30)

    threads = [threading.Thread(target=ask, args=(name,)) for name in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return [answers[name] for name in pair]


@pytest.mark.parametrize("pair", [("p0", "d0"), ("p1", "d1"), ("p1", "d0")])
def test_the_port_of_a_prefill_tells_which_one_is_meant(
    apart: Cluster, pair: tuple[str, str]
) -> None:
    room = hash(pair) % 2**62 + 1
    host, port = face(apart, pair[0])
    assert host == PREFILLS
    told, said = as_a_router(apart, pair, room, host, port, input_ids=[5, 6, 7])
    status, whole = post(
        f"{apart.lb}/generate",
        {
            "input_ids": [5, 6, 7],
            "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
        },
    )
    assert (told[0], said[0], status) == (200, 200, 200)
    assert said[1]["output_ids"] == whole["output_ids"]


def test_a_batch_may_have_a_list_of_places_or_one_room_for_all(apart: Cluster) -> None:
    host, port = face(apart, "p0")
    _, (status, listed) = as_a_router(
        apart, ("p0", "d0"), [101, 102], [host] * 2, [port] * 2, input_ids=[[5, 6], [7]]
    )  # type: ignore[arg-type]
    assert status == 200
    _, (status, shared) = as_a_router(apart, ("p0", "d0"), 103, host, port, input_ids=[[5, 6], [7]])
    assert status == 200
    assert [one["output_ids"] for one in listed] == [one["output_ids"] for one in shared]


def test_the_phone_books_port_is_not_enough_where_two_prefills_are(apart: Cluster) -> None:
    book = int(apart.book.rpartition(":")[2])
    said = {"input_ids": [5], "bootstrap_room": 1, "bootstrap_host": PREFILLS}
    status, answer = post(f"{apart.url('d0')}/generate", {**said, "bootstrap_port": book})
    assert status == 400
    for name in ("p0", "p1"):
        assert f"{name} ({PREFILLS}:{face(apart, name)[1]})" in answer["error"]["message"]


def test_nobody_connects_to_a_host_that_no_one_registered(apart: Cluster) -> None:
    with socket.create_server((NOBODY, 0)) as listener:
        listener.settimeout(0.5)
        port = listener.getsockname()[1]
        answers = as_a_router(apart, ("p0", "d0"), 105, NOBODY, port, input_ids=[5])
        assert [status for status, _ in answers] == [400, 400]
        with pytest.raises(TimeoutError):
            listener.accept()


def test_another_prefills_place_is_refused_by_a_prefill(apart: Cluster) -> None:
    said = {"input_ids": [5], "bootstrap_room": 106}
    host, port = face(apart, "p1")
    meeting = {"bootstrap_host": host, "bootstrap_port": port}
    status, answer = post(f"{apart.url('p0')}/generate", {**said, **meeting})
    assert status == 400
    assert f"this prefill is {host}:{face(apart, 'p0')[1]}" in answer["error"]["message"]


def test_prefill_hears_at_once_that_a_decode_drains(apart: Cluster) -> None:
    host, port = face(apart, "p0")
    pair = ("p0", "d0")
    assert (
        as_a_router(apart, pair, 107, host, port, input_ids=[5])[1][0] == 200
    )  # they know each other
    assert apart.pdctl("drain", "d0", "--yes").returncode == 0
    try:
        assert eventually(lambda: apart.status("d0")["state"] == "draining")
        told, said = as_a_router(apart, pair, 108, host, port, input_ids=[5])
        assert (told[0], said[0]) == (503, 503)
        assert told[1]["error"]["cause"] == said[1]["error"]["cause"] == "instance.draining"
    finally:
        assert apart.pdctl("undrain", "d0").returncode == 0

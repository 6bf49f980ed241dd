from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from daemons.protocol.codec import decode_to_front, encode_link
from daemons.protocol.generate import Drain, LookUp, Stop
from daemons.runtime import rank_link
from daemons.runtime.rank_link import RankLink


def test_messages_travel_both_ways(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    front = context.socket(zmq.PAIR)
    address = f"ipc://{tmp_path}/rank0"
    front.bind(address)
    link = RankLink(context, address)
    link.send(LookUp("p0"))
    assert front.poll(5000)
    assert decode_to_front(front.recv()) == LookUp("p0")
    for message in (Drain(True), Stop()):
        front.send(encode_link(message))
    heard: list[object] = []
    while len(heard) < 2:
        assert link.socket.poll(5000)
        heard += link.receive()
    assert heard == [Drain(True), Stop()]
    link.close()
    front.close(linger=0)
    context.term()


def test_the_front_is_gone_when_standard_input_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = RankLink(context, f"ipc://{tmp_path}/rank0")
    reader, writer = os.pipe()
    monkeypatch.setattr(rank_link, "STDIN", reader)
    os.write(writer, b"x")
    assert not link.front_is_gone()
    link.wait_for_end_of_front(0.0)
    os.close(writer)
    link.wait_for_end_of_front(60.0)  # returns at once
    assert link.front_is_gone()
    os.close(reader)
    context.destroy(linger=0)

"""A cluster with a key: it works as without, and who lacks the key changes nothing in it."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
import zmq

from daemons.cluster.key import make_key
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.codec import encode
from daemons.protocol.handshake import Abort, AbortAnswer, Destination, Fence, Progress
from daemons.protocol.ids import PeerId
from daemons.protocol.seal import Sealer
from daemons.protocol.status import Status
from daemons.protocol.topology import Registration, Role, State
from daemons.runtime.guard import bearer
from daemons.runtime.mailbox import zmq_address
from tests.live.test_tokens import LENGTHS, NEW, prompts, reference, streamed, whole
from tests.support.checkpoints import checkpoint
from tests.support.cluster import Cluster, eventually, get, post, running
from tests.support.http import asked

pytestmark = pytest.mark.live

TABLE_S = 20.0
OPEN_ON_LB = {"/health", "/metrics", "/v1/models", "/get_model_info", "/health_generate"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A small cluster whose daemons share a key."""
    folder = tmp_path_factory.mktemp("keyed")
    make_key(folder / "key")
    engine = {
        "chunk_tokens": 32,
        "batch_tokens": 64,
        "page_size": 16,
        "dtype": "fp32",
        "kv_tokens": 8192,
        "threads": 1,
    }
    with running(folder, str(checkpoint("llama")), engine=engine, key_file="key") as cluster:
        assert cluster.key is not None
        yield cluster


def me(cluster: Cluster, instance: str) -> PeerId:
    return PeerId(instance, cluster.instances()[instance]["epoch"])


def inbox(cluster: Cluster, instance: str) -> tuple[str, int]:
    """Return where a rank's inbox is, as the phone book says to who has the token."""
    ranks = "target_tp_rank=0&target_pp_rank=0&prefill_cp_rank=0&prefill_dp_rank=0"
    url = f"{cluster.book}/route?instance={instance}&{ranks}"
    row = get(url, headers=bearer(cluster.key, Role.BOOTSTRAP))
    return row["rank_ip"], row["rank_port"]


def dropped(cluster: Cluster, instance: str) -> dict[str, float]:
    counters = cluster.status(instance)["counters"]
    prefix = "messages_dropped:"
    return {k.removeprefix(prefix): v for k, v in counters.items() if k.startswith(prefix)}


def send(cluster: Cluster, instance: str, frames: list[bytes]) -> None:
    """Send frames to a rank's inbox from outside, waiting until they are on their way."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    way = context.socket(zmq.PUSH)
    way.setsockopt(zmq.SNDHWM, 0)
    way.setsockopt(zmq.IPV6, 1)
    way.connect(zmq_address(*inbox(cluster, instance)))
    for frame in frames:
        way.send(frame)
    context.destroy(linger=10_000)


def test_with_a_key_tokens_are_those_of_transformers(keyed: Cluster) -> None:
    asked_for = prompts(320, LENGTHS, seed=2)
    expected = reference(str(checkpoint("llama")), asked_for, NEW)
    assert [whole(keyed, prompt) for prompt in asked_for] == expected
    assert [streamed(keyed, prompt) for prompt in asked_for] == expected
    for instance in ("p0", "d0"):
        assert not set(dropped(keyed, instance)) & {"unsealed", "bad seal", "replayed"}


def test_every_verb_of_pdctl_works_with_the_key_file(keyed: Cluster) -> None:
    whole(keyed, [5, 6, 7])
    status = keyed.pdctl("status", "-o", "json")
    assert status.returncode == 0, status.stdout + status.stderr
    rooms = keyed.pdctl("rooms", "-o", "json")
    assert rooms.returncode == 0, rooms.stderr
    room = json.loads(rooms.stdout)["rooms"][0]["room"]
    traced = keyed.pdctl("trace", "room", room)
    assert traced.returncode == 0, traced.stderr
    assert "p.forward" in traced.stdout
    for words in (("drain", "d0", "--yes"), ("undrain", "d0")):
        done = keyed.pdctl(*words)
        assert done.returncode == 0, done.stderr
    assert eventually(lambda: asked("GET", f"{keyed.lb}/health")[0] == 200)
    chat = keyed.pdctl("chat", "Hello", "--max-tokens", "4")
    assert chat.returncode == 0, chat.stderr


def test_the_key_shows_neither_in_config_view_nor_in_any_log(keyed: Cluster) -> None:
    assert keyed.key is not None
    secret = keyed.key.secret.decode()
    view = keyed.pdctl("config", "view", "--origin")
    assert f"set, hash {keyed.key.short_hash}" in view.stdout
    secrets = {secret, keyed.key.plane.hex(), *(keyed.key.token(role) for role in Role)}
    logs = "".join(path.read_text() for path in keyed.file.parent.rglob("*.log"))
    assert keyed.key.short_hash in logs
    for text in (view.stdout, keyed.pdctl("doctor").stdout, logs):
        assert not [one for one in secrets if one in text]


def test_pdctl_without_the_key_is_told_what_it_lacks(keyed: Cluster, tmp_path: Path) -> None:
    document = yaml.safe_load(keyed.file.read_text())
    del document["key_file"]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(document))
    without = dataclasses.replace(keyed, file=tmp_path / "cluster.yaml", key=None)
    status = without.pdctl("status")
    assert status.returncode in (4, 5), status.stdout
    assert "key_file" in status.stdout + status.stderr
    for words in (("rooms",), ("drain", "d0", "--yes")):
        assert without.pdctl(*words).returncode != 0
    assert keyed.status("d0")["state"] == "ready"


@pytest.mark.parametrize("instance", ["bootstrap", "lb", "p0", "d0"])
@pytest.mark.parametrize("token", ["none", "wrong", "of another daemon"])
def test_without_the_token_a_daemon_shows_and_does_nothing(
    keyed: Cluster, instance: str, token: str
) -> None:
    assert keyed.key is not None
    other = Role.LB if instance != "lb" else Role.BOOTSTRAP
    headers = {
        "none": {},
        "wrong": {"Authorization": "Bearer " + "0" * 64},
        "of another daemon": bearer(keyed.key, other),
    }[token]
    base = {"bootstrap": keyed.book, "lb": keyed.lb}.get(instance) or keyed.url(instance)
    for method, path, body in CLOSED[instance]:
        status, answer = asked(method, base + path, body, headers)
        assert status == 401, (method, path, answer)
        assert b"key_file" in answer
    assert asked("GET", f"{base}/health", None, {})[0] == 200
    assert asked("GET", f"{base}/metrics", None, {})[0] == 200
    assert asked("GET", f"{base}/nowhere", None, {})[0] == 404
    assert keyed.pdctl("status").returncode == 0


GENERATE: dict[str, Any] = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
WORKER = [
    ("GET", "/status", None),
    ("GET", "/rooms", None),
    ("GET", "/rooms/1", None),
    ("GET", "/get_server_info", None),
    ("GET", "/v1/models", None),
    ("POST", "/drain", {"on": True}),
    ("POST", "/abort_request", {"abort_all": True}),
    ("POST", "/generate", GENERATE),
    ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("POST", "/v1/chat/completions", {"messages": []}),
]
CLOSED: dict[str, list[tuple[str, str, Any]]] = {
    "bootstrap": [
        ("PUT", "/route", {}),
        ("DELETE", "/route", {"instance": "d0", "epoch": 1}),
        ("GET", "/route?instance=p0", None),
        ("GET", "/topology?instance=p0", None),
        ("GET", "/instances", None),
        ("POST", "/register_dp_rank", {"bootstrap_room": 1, "dp_rank": 0}),
        ("POST", "/query_dp_ranks", {"bootstrap_rooms": [1]}),
    ],
    "lb": [
        ("GET", "/status", None),
        ("GET", "/fleet", None),
        ("GET", "/rooms", None),
        ("GET", "/rooms/1", None),
        ("POST", "/abort_request", {"abort_all": True}),
    ],
    "p0": WORKER,
    "d0": WORKER,
}


def test_clients_of_the_balancer_need_no_token(keyed: Cluster) -> None:
    for path in OPEN_ON_LB:
        assert asked("GET", keyed.lb + path, None, {})[0] == 200, path
    assert post(f"{keyed.lb}/generate", GENERATE)[0] == 200
    assert post(f"{keyed.lb}/abort_request", {"rid": "of-nobody"})[0] == 200


def test_a_registration_without_token_is_refused_and_the_book_stays(keyed: Cluster) -> None:
    before = {name: row["epoch"] for name, row in keyed.instances().items()}
    forged = Registration(
        instance="p0",
        role=Role.PREFILL,
        epoch=before["p0"] + 1,
        state=State.STARTING,
        http_host="203.0.113.9",
        http_port=9,
        lease_s=10,
        version="0",
    )
    status, _ = asked("PUT", f"{keyed.book}/route", msgspec.to_builtins(forged), {})
    assert status == 401
    assert {name: row["epoch"] for name, row in keyed.instances().items()} == before


def forgeries(cluster: Cluster, room: int) -> dict[str, list[bytes]]:
    """Return encoded messages that would end or spoil a room, by whom they are meant for."""
    prefill, decode = me(cluster, "p0"), me(cluster, "d0")
    failure = Failure(Cause.CLIENT_CANCELLED, "intake", "", "forged")
    pages = tuple(range(8))
    return {
        "p0": [
            encode(Abort(decode, prefill.epoch, room, 1, failure)),
            encode(Destination(decode, prefill.epoch, room, 1, pages, 0, 96, "0123456789abcdef")),
        ],
        "d0": [
            encode(Progress(prefill, decode.epoch, room, 1, Status.FAILED, 0, failure)),
            encode(Progress(prefill, decode.epoch, room, 1, Status.SUCCESS, 10**6)),
            encode(AbortAnswer(prefill, decode.epoch, room, 1, Fence.CLEAN)),
        ],
    }


def test_forged_messages_for_a_running_room_change_nothing(keyed: Cluster) -> None:
    """Unsealed, sealed with another key, sealed for another rank, and cut at any byte."""
    prompt, new = [7] * 96, 300
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": new, "ignore_eos": True},
    }
    undisturbed = post(f"{keyed.lb}/generate", body)[1]["output_ids"]
    before = {name: dropped(keyed, name) for name in ("p0", "d0")}
    answers: list[Any] = []
    client = threading.Thread(target=lambda: answers.append(post(f"{keyed.lb}/generate", body)))
    client.start()
    assert keyed.key is not None
    sent = {"p0": 0, "d0": 0}
    while client.is_alive():
        listed = get(f"{keyed.lb}/rooms", headers=bearer(keyed.key, Role.LB))["rooms"]
        for row in listed[:1]:
            for name, messages in forgeries(keyed, row["room"]).items():
                frames = []
                for message in messages:
                    frames.append(Sealer(None).close(message, me(keyed, name)))
                    frames.append(Sealer(b"x" * 32).close(message, me(keyed, name)))
                    frames.append(Sealer(keyed.key.plane).close(message, PeerId("z9", 1)))
                send(keyed, name, frames)
                sent[name] += len(frames)
    client.join()
    assert answers[0][0] == 200
    assert answers[0][1]["output_ids"] == undisturbed
    for name in ("p0", "d0"):
        assert sent[name]

        def all_refused(name: str = name) -> bool:
            now = dropped(keyed, name)
            news = sum(now.get(w, 0) - before[name].get(w, 0) for w in ("unsealed", "bad seal"))
            return news == sent[name]

        assert eventually(all_refused), (sent, before, dropped(keyed, name))
    assert eventually(lambda: keyed.is_idle("p0") and keyed.is_idle("d0"))


def test_a_sealed_message_that_is_sent_again_changes_nothing(keyed: Cluster) -> None:
    assert keyed.key is not None
    prefill, stranger = me(keyed, "p0"), PeerId("d9", 1)
    failure = Failure(Cause.CLIENT_CANCELLED, "intake", "", "replayed")
    message = encode(Abort(stranger, prefill.epoch, 4711, 1, failure))
    frame = Sealer(keyed.key.plane).close(message, prefill)
    send(keyed, "p0", [frame] * 101)
    assert eventually(lambda: dropped(keyed, "p0").get("replayed") == 100), dropped(keyed, "p0")
    assert whole(keyed, [5, 6, 7])


def test_a_worker_with_another_key_cannot_join_and_says_why(keyed: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    document = yaml.safe_load(keyed.file.read_text())
    document["decode"]["d1"] = {}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(document))
    argv = [sys.executable, "-m", "daemons.decode", "--config", str(tmp_path / "cluster.yaml")]
    log = tmp_path / "d1.log"
    with log.open("w") as out:
        process = subprocess.Popen([*argv, "--instance", "d1"], stdout=out, stderr=out)
    try:
        assert eventually(lambda: "registration.failed" in log.read_text(), 60), log.read_text()
        (line,) = [
            json.loads(one) for one in log.read_text().splitlines() if "registration.failed" in one
        ]
        assert "not this cluster's" in line["text"]
        assert "key_file" in line["text"]
        assert "d1" not in keyed.instances()
        assert serves(keyed)
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait(TABLE_S)


def serves(cluster: Cluster) -> bool:
    return post(f"{cluster.lb}/generate", GENERATE)[0] == 200

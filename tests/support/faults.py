"""What live tests of faults share: clients that can leave, faults, freezing, the right text.

A cell of a matrix is one test; how many of each file ran and passed is printed at the end.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from transformers import AutoModelForCausalLM

from daemons.protocol.topology import Role
from daemons.runtime.guard import bearer
from tests.support.cluster import Cluster, eventually

WORKERS = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
SOON_S = 2.0  # the other leg ends within


@dataclass(slots=True)
class Ended:
    """How a request ended: status, error or output, and when (monotonic clock)."""

    status: int
    ids: list[int]
    error: dict[str, Any] | None
    done: bool  # a stream had its end mark; a whole answer always has
    at_s: float
    first_s: float = 0.0  # of a stream: when its first event came
    gaps_s: list[float] = field(default_factory=list)  # between its events
    retry_after: str | None = None
    answer: dict[str, Any] = field(default_factory=dict)


class Client:
    """One request under way: it was sent, and may be read to its end or left."""

    def __init__(
        self,
        url: str,
        body: dict[str, Any],
        *,
        headers: dict[str, str] | None = None,
        within_s: float = 60.0,
    ) -> None:
        parts = urlsplit(url)
        self.streams = bool(body.get("stream"))
        self.sent_s = time.monotonic()
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=within_s
        )
        head = {"Content-Type": "application/json", **(headers or {})}
        self._connection.request("POST", parts.path, json.dumps(body).encode(), head)

    def leave(self) -> None:
        """Close the connection without a word."""
        self._connection.close()

    def end(self) -> Ended:
        """Read to the end."""
        with contextlib.closing(self._connection):
            answer = self._connection.getresponse()
            after = answer.getheader("Retry-After")
            if answer.getheader("Content-Type", "").startswith("text/event-stream"):
                ended = self._read_events(answer)
            else:
                said = json.loads(answer.read())
                error = said.get("error") if isinstance(said, dict) else None
                ids = [] if error or isinstance(said, list) else said["output_ids"]
                now_s = time.monotonic()
                whole = said if isinstance(said, dict) else {"items": said}
                ended = Ended(answer.status, ids, error, error is None, now_s, answer=whole)
            ended.retry_after = after
            return ended

    def _read_events(self, answer: http.client.HTTPResponse) -> Ended:
        ended = Ended(answer.status, [], None, False, 0.0)
        last_s = 0.0
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            for line in answer:
                if not line.startswith(b"data:"):
                    continue
                now_s, data = time.monotonic(), line[5:].strip()
                if last_s:
                    ended.gaps_s.append(now_s - last_s)
                last_s, ended.first_s = now_s, ended.first_s or now_s
                if data == b"[DONE]":
                    ended.done = True
                    continue
                event = json.loads(data)
                if "error" in event:
                    ended.error = event["error"]
                else:
                    ended.ids, ended.answer = event["output_ids"], event
        ended.at_s = time.monotonic()
        return ended


def body(
    prompt: Sequence[int], new: int = 8, *, stream: bool = False, **sampling: Any
) -> dict[str, Any]:
    """Return a greedy request that ignores the end of sequence."""
    wishes = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True, **sampling}
    return {"input_ids": list(prompt), "sampling_params": wishes, "stream": stream}


def ask(cluster: Cluster, prompt: Sequence[int], new: int = 8, **more: Any) -> Client:
    """Send a request to pd-lb."""
    headers, within_s = more.pop("headers", None), more.pop("within_s", 60.0)
    sent = body(prompt, new, **more)
    return Client(f"{cluster.lb}/generate", sent, headers=headers, within_s=within_s)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Return random tokens, the same for the same arguments."""
    draw = random.Random(f"{length}-{seed}")
    return [draw.randrange(3, 320) for _ in range(length)]


class Right:
    """What transformers says in fp32, asked once for each prompt."""

    def __init__(self, model_dir: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self._model.generation_config.pad_token_id = 0
        self._known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def ids(self, prompt: Sequence[int], new: int = 8) -> list[int]:
        """Return the greedy continuation, not ended by the end of sequence."""
        key = tuple(prompt), new
        if key not in self._known:
            asked = torch.tensor([list(prompt)])
            out = self._model.generate(
                asked,
                attention_mask=torch.ones_like(asked),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=-1,
            )
            self._known[key] = out[0, len(prompt) :].tolist()
        return self._known[key]


def arm(cluster: Cluster, instance: str, fault: str, **more: Any) -> None:
    """Put a fault into a worker."""
    _chaos(cluster, instance, "POST", {"fault": fault, **more})


def clear(cluster: Cluster, *instances: str) -> None:
    """Take all faults out of these workers, as far as they are there."""
    for instance in instances:
        with contextlib.suppress(OSError, KeyError):
            _chaos(cluster, instance, "DELETE", None)


def _chaos(cluster: Cluster, instance: str, method: str, said: object) -> None:
    parts = urlsplit(cluster.url(instance))
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    head = {"Content-Type": "application/json", **bearer(cluster.key, WORKERS[instance])}
    with contextlib.closing(connection):
        raw = None if said is None else json.dumps(said).encode()
        connection.request(method, "/chaos", raw, head)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text


def rooms_in(cluster: Cluster, instance: str, stage: str) -> int:
    """Return how many rooms are in a stage of a worker."""
    count: int = cluster.status(instance)["rooms"][stage]
    return count


def rooms_left(cluster: Cluster, instance: str) -> int:
    """Return how many rooms a worker has."""
    return sum(cluster.status(instance)["rooms"].values())


def is_empty(cluster: Cluster, instance: str, within_s: float = SOON_S) -> bool:
    """Say whether the last room leaves a worker in time."""
    return eventually(lambda: rooms_left(cluster, instance) == 0, within_s)


@contextlib.contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes, and let them go on at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: all(_state(pid) == "T" for pid in pids), 5)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def healthy(
    cluster: Cluster, right: Right, *, within_s: float = 90.0, workers: Sequence[str] = ()
) -> None:
    """Fail unless the cluster soon says the right text again and all its pools are free."""
    prompt = prompt_of(21, 99)

    def serves() -> bool:
        try:
            ended = ask(cluster, prompt, within_s=10).end()
        except OSError:
            return False
        assert ended.status >= 500 or ended.ids == right.ids(prompt), ended
        return ended.status == 200

    assert eventually(serves, within_s), "it does not serve again"
    for worker in workers or ("p0", "d0"):
        idle: Callable[[], bool] = lambda name=worker: cluster.is_idle(name)  # type: ignore[misc]  # noqa: E731
        assert eventually(idle, within_s), cluster.status(worker)


def is_clean(ended: Ended, expected: Sequence[int]) -> bool:
    """Say whether an end is the right text, or an error that names stage and cause, never else.

    What came of a stream before an error is the beginning of the right text.
    """
    if ended.error is None:
        return ended.status == 200 and ended.done and ended.ids == list(expected)
    named = all(ended.error[name] for name in ("stage", "cause", "message"))
    return named and not ended.done and list(expected[: len(ended.ids)]) == ended.ids

"""Clients that know the right text of everything they ask for."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.cluster import Cluster, post

LENGTHS = (1, 15, 16, 17, 31, 33, 64, 150, 300)
NEW = 24
LIMIT_S = 60.0  # every request ends within, well or with an error that says why


@dataclass
class Clients:
    """Threads that ask until they are stopped, and count what came."""

    cluster: Cluster
    count: int
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _right: dict[int, list[int]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def learn(self) -> None:
        """Ask for each prompt once, in peace: that is the right answer from now on."""
        for length in LENGTHS:
            status, answer = post(f"{self.cluster.lb}/generate", self._body(length))
            if status != 200:
                raise RuntimeError(f"no answer in peace: {answer}")
            self._right[length] = answer["output_ids"]

    def start(self) -> None:
        """Begin to ask."""
        for number in range(self.count):
            draw = random.Random(f"{self.seed}-{number}")
            thread = threading.Thread(target=self._ask, args=(draw,), name=f"client-{number}")
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End; every client must come back."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S + 10)
            if thread.is_alive():
                self.wrongs.append(f"{thread.name} still waits: a request without an end")

    def wrong(self) -> list[str]:
        """Return what must not have happened."""
        found = list(self.wrongs)
        if not self.outcomes["right"]:
            found.append("no request was served")
        return found

    def summary(self) -> str:
        """Return the counts in one line."""
        asked = sum(self.outcomes.values())
        return f"{asked} requests, " + ", ".join(
            f"{count} {name}" for name, count in self.outcomes.most_common()
        )

    def table(self) -> str:
        """Return the causes of errors, and the slowest end."""
        rows = [f"  {cause:28} {count}" for cause, count in self.causes.most_common()]
        return "\n".join([f"slowest end {self.slowest_s:.1f} s; errors by cause:", *rows])

    def _body(self, length: int) -> dict[str, Any]:
        prompt = [3 + (length * 7 + place * 13) % 300 for place in range(length)]
        sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
        return {"input_ids": prompt, "sampling_params": sampling}

    def _ask(self, draw: random.Random) -> None:
        while not self._stop.is_set():
            length = draw.choice(LENGTHS)
            begun_s = time.monotonic()
            try:
                outcome = self._once(draw, length)
            except (OSError, http.client.HTTPException, ValueError) as error:
                outcome = "broken"
                self.wrongs.append(f"length {length}: {type(error).__name__}: {error}")
            took_s = time.monotonic() - begun_s
            self.slowest_s = max(self.slowest_s, took_s)
            if took_s > LIMIT_S:
                self.wrongs.append(f"length {length}: {outcome} after {took_s:.0f} s")
            self.outcomes[outcome] += 1
            if outcome == "error":
                self._stop.wait(0.2)  # as a client that backs off

    def _once(self, draw: random.Random, length: int) -> str:
        body = self._body(length)
        if draw.random() < 0.5:
            status, answer = post(f"{self.cluster.lb}/generate", body, LIMIT_S)
            if status == 200:
                return self._judge(length, answer["output_ids"])
            return self._error(answer)
        leaves_after = draw.randrange(1, NEW) if draw.random() < 0.3 else None
        return self._streamed(length, {**body, "stream": True}, leaves_after)

    def _streamed(self, length: int, body: dict[str, Any], leaves_after: int | None) -> str:
        request = urllib.request.Request(
            f"{self.cluster.lb}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        last = ""
        seen = 0
        try:
            with contextlib.closing(urllib.request.urlopen(request, timeout=LIMIT_S)) as answer:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    said = line[6:].strip().decode()
                    if said == "[DONE]":
                        return self._judge(length, json.loads(last)["output_ids"])
                    last, seen = said, seen + 1
                    if seen == leaves_after:
                        return "left"
        except urllib.error.HTTPError as error:
            with error:
                return self._error(json.load(error))
        return self._error(json.loads(last))

    def _judge(self, length: int, ids: list[int]) -> str:
        if ids == self._right[length]:
            return "right"
        self.wrongs.append(f"length {length}: said {ids}, right is {self._right[length]}")
        return "WRONG"

    def _error(self, answer: dict[str, Any]) -> str:
        error = answer.get("error")
        if error is None:
            self.wrongs.append(f"a stream ended without [DONE] and without an error: {answer}")
            return "WRONG"
        cause = error.get("cause")
        if not cause or not error.get("stage"):
            self.wrongs.append(f"an error without cause or stage: {error}")
        self.causes[str(cause)] += 1
        return "error"

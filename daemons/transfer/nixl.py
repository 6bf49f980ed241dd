"""NIXL behind the four verbs: UCX over shared memory, TCP or RDMA, whatever it finds.

One agent receives; its metadata is the session. Every peer is written to by an agent of its own,
which is thrown away whenever a write fails, before the caller hears of it: its endpoints are closed
with it, so nothing leaves any more. What was raised would keep the agent by its traceback's frames;
they are cleared. The extra ``nixl`` installs it; nobody imports it who does not choose it.
"""

from __future__ import annotations

import base64
import gc
import importlib
import logging
import os
import secrets
import time
import traceback
import weakref
from binascii import Error as BadBase64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from daemons.cluster.errors import OperatorError
from daemons.transfer.backend import (
    Copies,
    CopyTable,
    PeerGone,
    Region,
    WriteCut,
    table,
)
from daemons.transfer.config import TransferConfig
from daemons.transfer.memory import Registered
from daemons.transfer.peers import Peer, Peers
from daemons.transfer.sessions import part

NAME = "nixl"
HEAD = "nixl:"
NAPS_S = (0.00005, 0.001)  # between two questions: from, to
DEVICE = 0  # of host memory


def create(config: TransferConfig, host: str) -> Nixl:
    """Start an agent in this process.

    Raises:
        OperatorError: NIXL is not installed, or does not start.
    """
    if config.protocol == "tcp":
        os.environ["UCX_TLS"] = "tcp,self"  # read once, when the first agent starts
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    logging.getLogger("nixl").setLevel(logging.ERROR)  # stdout is ours
    try:
        module = importlib.import_module("nixl_cu12")
    except ImportError as error:
        raise OperatorError(
            f"NIXL does not load: {error}", "scripts/install --nixl, or transfer.backend: auto"
        ) from error
    return Nixl(module, config)


@dataclass(frozen=True, slots=True)
class Sending:
    """What one peer is written by."""

    agent: Any
    remote: str  # the peer's name, to this agent


class Nixl:
    """See ``TransferBackend``."""

    def __init__(self, module: Any, config: TransferConfig) -> None:
        """``module`` is ``nixl_cu12``."""
        self._module = module
        self._config = config
        self._memory = Registered()
        self._peers: Peers[Sending] = Peers(_end)
        self._receiver: Any = self._agent()

    @property
    def session(self) -> str:
        if self._receiver is None:
            return ""
        metadata = self._receiver.get_agent_metadata()
        return HEAD + base64.urlsafe_b64encode(metadata).decode().rstrip("=")

    @property
    def transport(self) -> str:
        return f"nixl {os.environ.get('UCX_TLS', 'ucx')}"

    def transport_to(self, peer: str) -> str:
        return self.transport if part(peer, NAME) in self._peers else ""

    def register(self, regions: Sequence[Region]) -> None:
        self._memory.add(regions)
        self._register(self._receiver, regions)
        for peer in self._peers.all():
            with peer.lock:
                if peer.way is not None:
                    self._register(peer.way.agent, regions)

    def write(self, peer: str, copies: Copies) -> None:
        self._memory.check_sources(copies)
        if not len(copies):
            return
        with self._peers.held(part(peer, NAME)) as held:
            try:
                held.way = held.way or self._opened(held.session)
                self._push(held.way, table(copies))
            except BaseException as error:  # whatever it was, nothing may go on behind the caller
                _clear_frames(error)  # they hold the agent
                self._peers.forget(held)
                raise

    def close(self) -> None:
        self._peers.close()
        self._receiver = None
        self._memory = Registered()
        gc.collect()  # the agents' ends close their endpoints

    def _agent(self) -> Any:
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            return self._module.nixl_agent(name, self._module.nixl_agent_config(backends=["UCX"]))
        except Exception as error:  # its exceptions have no common class
            raise OperatorError(
                f"NIXL does not start: {error}", "its lines on stderr say why"
            ) from error

    @staticmethod
    def _register(agent: Any, regions: Sequence[Region]) -> None:
        rows = [(region.address, region.bytes, DEVICE, "kv") for region in regions]
        agent.register_memory(rows, "DRAM")

    def _opened(self, session: str) -> Sending:
        try:
            if not session.startswith(HEAD):
                raise ValueError("this is no session of nixl")
            code = session.removeprefix(HEAD)
            metadata = base64.b64decode(
                code + "=" * (-len(code) % 4), altchars=b"-_", validate=True
            )
        except (ValueError, BadBase64) as error:
            raise PeerGone(f"{session[:40]}: {error}") from error
        agent = self._agent()
        if self._memory.regions:
            self._register(agent, self._memory.regions)
        try:
            remote = agent.add_remote_agent(metadata)
        except Exception as error:
            raise PeerGone(f"{session[:40]}: {error}") from error
        return Sending(agent, remote.decode() if isinstance(remote, bytes) else remote)

    def _push(self, way: Sending, copies: CopyTable) -> None:
        agent = way.agent
        try:
            here, there = (
                agent.get_xfer_descs(rows(addresses, copies.bytes), "DRAM")
                for addresses in (copies.source, copies.target)
            )
            handle = agent.initialize_xfer("WRITE", here, there, way.remote)
        except Exception as error:
            raise WriteCut(f"{way.remote}: {error}", settled=True) from error
        try:
            self._wait(agent, handle, agent.transfer(handle), way.remote)
        except BaseException as error:
            with suppress(Exception):  # it cannot be cancelled; the agent's end ends it
                agent.release_xfer_handle(handle)
            if isinstance(error, WriteCut) or not isinstance(error, Exception):
                raise
            raise WriteCut(f"{way.remote}: {error}") from error
        agent.release_xfer_handle(handle)

    def _wait(self, agent: Any, handle: Any, state: str, remote: str) -> None:
        begun_s, nap_s = time.monotonic(), NAPS_S[0]
        while state != "DONE":
            if state == "ERR":
                raise WriteCut(f"{remote}: the transfer failed")
            if self._peers.closing.is_set():
                raise WriteCut(f"{remote}: closed here")
            if time.monotonic() - begun_s > 2 * self._config.write_timeout_s:
                raise WriteCut(f"{remote}: not done within {2 * self._config.write_timeout_s} s")
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, NAPS_S[1])
            state = agent.check_xfer_state(handle)


def rows(addresses: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return descriptors as NIXL takes them, shape ``[copies, 3]``: address, length, device."""
    devices = np.full(len(lengths), DEVICE)
    return np.stack((addresses, lengths, devices), axis=1).astype(np.uint64)


def _end(peer: Peer[Sending]) -> None:
    """End a peer's agent.

    Raises:
        AssertionError: something still holds it, so it may go on writing.
    """
    assert peer.way is not None
    gone, peer.way = weakref.ref(peer.way.agent), None
    gc.collect()  # the agent's end closes its endpoints
    if gone() is not None:
        raise AssertionError(f"something still holds the agent for {peer.session[:40]}")


def _clear_frames(error: BaseException) -> None:
    """Drop the local variables of all calls that ended with ``error`` or what led to it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        if (one := waiting.pop()) is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            waiting += [one.__cause__, one.__context__]

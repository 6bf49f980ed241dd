"""NIXL behind the four verbs: UCX over shared memory, TCP or RDMA, whatever it finds.

One agent receives; its metadata is the session. Every peer is written to by an agent of its own,
which is thrown away whenever a write fails, before the caller hears of it: its endpoints are closed
with it, so nothing leaves any more. What was raised would keep the agent by its traceback's frames;
they are cleared, which leaves the cells of a comprehension: none may see an agent. A request tells
only that it is done, so a write is several, and the time without progress is that in which none
was. The extra ``nixl`` installs it; nobody imports it who does not choose it.
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
from collections import deque
from collections.abc import Iterator, Sequence
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
from daemons.transfer.slices import cut

NAME = "nixl"
HEAD = "nixl:"
NAPS_S = (0.00005, 0.001)  # between two questions: from, to
PIECE_BYTES = 4 << 20  # of a request: only of a whole one it is told that it has arrived
PIECES = 2  # requests under way; more share the wire and end together, late
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
        handles: list[Any] = []
        try:
            handles += self._prepared(way, copies)
            self._carry(way, handles)
        except BaseException as error:
            for handle in handles:  # what is under way cannot be cancelled; the agent's end ends it
                with suppress(Exception):
                    way.agent.release_xfer_handle(handle)
            if isinstance(error, WriteCut) or not isinstance(error, Exception):
                raise
            raise WriteCut(f"{way.remote}: {error}") from error
        for handle in handles:
            way.agent.release_xfer_handle(handle)

    @staticmethod
    def _prepared(way: Sending, copies: CopyTable) -> Iterator[Any]:
        """Yield the requests; where one is refused, nothing has left yet."""
        agent = way.agent
        for piece in cut(copies, PIECE_BYTES):
            try:
                here = agent.get_xfer_descs(rows(piece.source, piece.bytes), "DRAM")
                there = agent.get_xfer_descs(rows(piece.target, piece.bytes), "DRAM")
                yield agent.initialize_xfer("WRITE", here, there, way.remote)
            except Exception as error:
                raise WriteCut(f"{way.remote}: {error}", settled=True) from error

    def _carry(self, way: Sending, handles: Sequence[Any]) -> None:
        """Post the requests in order, a few at a time, until all are done."""
        limit_s = self._config.write_timeout_s
        waiting, under_way = deque(handles), list[Any]()
        moved_s, nap_s = time.monotonic(), NAPS_S[0]
        while waiting or under_way:
            if self._peers.closing.is_set():
                raise WriteCut(f"{way.remote}: closed here")
            is_moving = False
            for handle in tuple(under_way):
                if _done(way, way.agent.check_xfer_state(handle)):
                    under_way.remove(handle)
                    is_moving = True
            while waiting and len(under_way) < PIECES:
                handle = waiting.popleft()
                is_moving = True
                if not _done(way, way.agent.transfer(handle)):
                    under_way.append(handle)
            if is_moving:
                moved_s, nap_s = time.monotonic(), NAPS_S[0]
            elif time.monotonic() - moved_s > limit_s:
                raise WriteCut(f"{way.remote}: no progress for {limit_s} s")
            if under_way:
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, NAPS_S[1])


def _done(way: Sending, state: str) -> bool:
    """Read a request's state.

    Raises:
        WriteCut: it failed.
    """
    if state == "ERR":
        raise WriteCut(f"{way.remote}: the transfer failed")
    return state == "DONE"


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

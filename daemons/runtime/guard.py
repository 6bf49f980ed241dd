"""Who may use a daemon's endpoints: those who show its token, where the cluster has a key.

- Every route is closed unless the daemon names it open, so a new one is closed until somebody
  opens it. What is no route at all is 404 to everybody.
- Tokens are compared in constant time. A refusal says what to send, and never what is right.
- Without a key everything is open, and a daemon that can be reached from outside says so once.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Middleware

from daemons.cluster.key import ClusterKey
from daemons.cluster.load import is_loopback
from daemons.protocol.causes import Cause, Failure
from daemons.protocol.topology import Role
from daemons.runtime.complaints import Complaints
from daemons.runtime.http import Answering, Refusal
from daemons.runtime.log import logger

HEALTH, METRICS = "/health", "/metrics"
SCHEME = "bearer "
HINT = "send 'Authorization: Bearer …' as pdctl does with the cluster's key (key_file)"


@dataclass(frozen=True, slots=True)
class Guard:
    """Stands before the routes of one daemon; ``token`` None lets everybody pass."""

    token: bytes | None = field(default=None, repr=False)
    open_routes: frozenset[str] = frozenset()  # as they were added, e.g. "/rooms/{room}"
    complaints: Complaints = field(default_factory=Complaints)

    @property
    def middleware(self) -> Middleware:
        """Return the middleware that applies it."""

        @web.middleware
        async def guarded(request: web.Request, handler: Answering) -> web.StreamResponse:
            if self.token is not None and not self._is_open(request):
                self.check(request)
            return await handler(request)

        return guarded

    def check(self, request: web.Request) -> None:
        """Let a request pass that shows the token, or all where there is none.

        Raises:
            Refusal: 401.
        """
        if self.token is None:
            return
        given = request.headers.get("Authorization", "")
        if not given:
            why, words = "no token", "it wants the cluster's token"
        elif not given.lower().startswith(SCHEME):
            why, words = "no bearer token", "it wants a bearer token"
        elif hmac.compare_digest(
            given[len(SCHEME) :].strip().encode("utf-8", "replace"), self.token
        ):
            return
        else:
            why, words = "wrong token", "the token is not this cluster's, or another daemon's"
        self.complaints.say(
            "request.unauthorized",
            why,
            lambda: {
                "sender": request.remote,
                "method": request.method,
                "path": request.path[:200],
            },
        )
        detail = f"{request.method} {request.path[:200]}: {words}; {HINT}"
        raise Refusal(401, detail, failure=Failure(Cause.REQUEST_UNAUTHORIZED, "http", "", detail))

    def _is_open(self, request: web.Request) -> bool:
        match = request.match_info
        if match.http_exception is not None:  # no such route, or not this method: nothing to guard
            return True
        resource = match.route.resource
        return resource is not None and resource.canonical in self.open_routes


def guard(
    key: ClusterKey | None, role: Role, *, also_open: Iterable[str] = (), metrics_too: bool = False
) -> Guard:
    """Return the guard of a daemon: health is open, and metrics unless ``metrics_too``."""
    always = {HEALTH} if metrics_too else {HEALTH, METRICS}
    token = key.token(role).encode() if key is not None else None
    return Guard(token, frozenset({*always, *also_open}))


def bearer(key: ClusterKey | None, role: Role) -> dict[str, str]:
    """Return the headers by which a daemon of this role lets us in; {} without a key."""
    return {} if key is None else {"Authorization": f"Bearer {key.token(role)}"}


def tell_exposure(bind: str, key: ClusterKey | None) -> None:
    """Log which key is used, or that there is none although others can reach us."""
    if key is not None:
        logger().info("key.loaded", hash=key.short_hash, origin=key.origin)
    elif not is_loopback(bind):
        hint = "anybody who reaches it is obeyed: pdctl keygen, then key_file in the cluster file"
        logger().warning("key.missing", bind=bind, hint=hint)

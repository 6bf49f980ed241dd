"""Settings of the balancer: the ``lb:`` section of the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from daemons.cluster.model import DEFAULT_HOST
from daemons.cluster.worker import Seconds
from daemons.protocol.ids import InstanceName, Port


class StaticWorker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker known without the phone book; its ``GET /health`` says whether it is ready."""

    instance: InstanceName  # as it calls itself
    role: Literal["prefill", "decode"]  # which leg it serves
    address: str  # where its HTTP face is reached
    port: Port  # of its HTTP face
    bootstrap_port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = (
        0  # of a prefill that is no pd-prefill: where decodes meet it; 0: our phone book
    )


class LbConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the balancer listens, whom it knows, and how long it waits."""

    host: str = DEFAULT_HOST  # a name under hosts: the machine that runs it
    bind: str = ""  # address to listen on; "": the host's address
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 8000
    advertise: str = ""  # address told to others; "": the host's address
    prefill_policy: str = "least_rooms"  # a name in lb/policies
    decode_policy: str = "credits"  # a name in lb/policies
    static_workers: tuple[StaticWorker, ...] = ()  # instead of asking the phone book
    first_token: Literal["prefill", "decode"] = "prefill"  # whose first token a stream begins with
    local_prefill: Literal["never", "when_alone", "threshold"] = "never"  # decode computes prompts
    local_prefill_tokens: Annotated[int, msgspec.Meta(ge=0)] = 64  # below it, with threshold
    attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3  # tries of one request, the first too
    retry_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2  # retries per request
    retry_reserve: Annotated[float, msgspec.Meta(ge=0)] = 20.0  # retries saved up at most
    retry_wait_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0  # for a pair; at most queue_s
    breaker_failures: Annotated[int, msgspec.Meta(ge=1)] = 5  # in a row: then a worker rests
    breaker_rest_s: Seconds = 5.0  # the first time; longer after each failed try
    health_misses: Annotated[int, msgspec.Meta(ge=1)] = 5  # questions in a row without an answer
    client_rooms: Annotated[int, msgspec.Meta(ge=0)] = 0  # open at once of one client; 0: any
    client_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # requests/s of one client; 0: any
    client_burst: Annotated[int, msgspec.Meta(ge=1)] = 20  # requests of a client beyond its rate
    poll_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0  # how often the fleet is looked at
    stale_s: Seconds = 300.0  # a silent phone book's last word is believed for so long
    total_s: Seconds = 600.0  # a request that names no time of its own
    idle_s: Seconds = 60.0  # between two events of a stream
    connect_s: Seconds = 2.0  # until a worker's socket accepts
    lease_s: Seconds = 10.0  # own registration, renewed at a third of it
    drain_s: Seconds = 60.0  # SIGTERM: open requests may finish for so long
    max_rooms_per_prefill: Annotated[int, msgspec.Meta(ge=1)] = 256  # in flight; others wait
    max_rooms_per_decode: Annotated[int, msgspec.Meta(ge=1)] = 256  # in flight; others wait
    queue: Annotated[int, msgspec.Meta(ge=0)] = 256  # requests that may wait for a place
    queue_s: Seconds = 30.0  # and for how long; then 503 with Retry-After
    max_items: Annotated[int, msgspec.Meta(ge=1)] = 256  # prompts of one request
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 4096  # of clients; more get 503
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 20  # of one request
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # that share the port
    api_keys_file: str = ""  # hashed keys of clients, beside this file; "": anybody may ask
    salt_cache: bool = False  # cached prefixes are shared within one API key only
    cors_origins: tuple[str, ...] = ()  # whose pages browsers let read answers; "*": any
    tls_port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0  # HTTPS, beside port; 0: none
    tls_bind: str = ""  # address of it; "": that of port
    tls_cert_file: str = ""  # PEM, the chain; beside this file
    tls_key_file: str = ""  # PEM; beside this file
    log_level: Literal["debug", "info", "warning", "error"] = "info"

"""A room on the prefill side, from its request to the last byte that landed."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.kv.prefix_tree import Lease
from daemons.kv.window_table import WindowTable
from daemons.protocol.causes import Failure
from daemons.protocol.generate import Submit, TokenOut
from daemons.protocol.handshake import Destination, Fence
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import ROW_BYTES


@dataclass(slots=True)
class Request:
    """All that the core knows of a room."""

    submit: Submit
    key: RoomKey
    submitted_s: float
    since_s: float  # when it entered its present stage, or last moved in it
    destination: Destination | None = None
    pages: tuple[int, ...] = ()  # in prompt order; ours, but for those that the lease has
    lease: Lease = field(default_factory=Lease)  # cached pages that we read
    window: WindowTable = field(default_factory=WindowTable)  # ours, but for those that it reads
    cached_tokens: int = 0  # prompt tokens that were in the cache
    row: int | None = None  # ours
    computed: int = 0  # prompt tokens whose KV lies in the pages
    handed: int = 0  # pages handed to the lane
    unsettled: int = 0  # writes that the lane has not reported on
    step_tokens: int = 0  # in the forward that is under way; its pages are in use
    first: TokenOut | None = None
    prompt_logprobs: list[TokenOut] = field(default_factory=list)
    sent_bytes: int = 0
    wire_s: float = 0.0  # that their writes took
    early_bytes: int = 0  # of them, those that had landed before the prompt's forward ended
    is_skipped: bool = False  # a write was not carried out, since its forward broke
    is_ready: bool = True  # it has no grammar, or the engine has compiled it
    turn: float = 0.0  # in the queue, see runtime.turns
    fence: Fence = Fence.CLEAN
    failure: Failure | None = None  # the first cause; the room only waits for its writes then

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return self.submit.prompt

    @property
    def peer(self) -> PeerId | None:
        """The decode that said where to write."""
        return self.destination.sender if self.destination else None

    @property
    def peer_name(self) -> str:
        """The decode's instance name, "" before it is known."""
        return self.destination.sender.instance if self.destination else ""

    @property
    def overlap_fraction(self) -> float | None:
        """The share of the pages' bytes that had landed before the prompt's forward ended.

        None: no page had to be sent.
        """
        pages_bytes = self.sent_bytes - ROW_BYTES
        return min(1.0, self.early_bytes / pages_bytes) if pages_bytes > 0 else None

    @property
    def expires_s(self) -> float:
        """When the client stops waiting."""
        return self.submitted_s + self.submit.timeout_s

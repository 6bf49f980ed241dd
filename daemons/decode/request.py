"""A room on the decode side, from its request to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemons.kv.prefix_tree import Lease
from daemons.kv.window_table import WindowTable
from daemons.protocol.causes import Failure
from daemons.protocol.generate import Submit, TokenOut
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.metadata import Row
from daemons.protocol.status import Status


@dataclass(slots=True)
class Request:
    """All that the core knows of a room."""

    submit: Submit
    key: RoomKey
    submitted_s: float
    since_s: float  # when it entered its present stage, or last moved in it
    need_pages: int  # for the prompt and all that may be generated
    peer: PeerId | None = None  # the prefill that was told where to write
    pages: tuple[int, ...] = ()  # in token order, the lease's first
    lease: Lease = field(default_factory=Lease)  # cached pages that we read
    window: WindowTable = field(default_factory=WindowTable)  # all of it our own
    row: int | None = None
    status: Status = Status.BOOTSTRAPPING
    sent_bytes: int = 0  # that prefill reports
    output: list[int] = field(default_factory=list)
    is_ready: bool = True  # it has no grammar, or the engine has compiled it
    begun: bool = False  # the engine knows it
    in_steps: int = 0  # steps, or a copy to or from the host, that use the pages now
    local: bool = False  # nobody else computes the prompt
    computed: int = 0  # tokens of the prompt that were computed here, or found
    cached_tokens: int = 0  # of the prompt, that did not have to be computed here
    chunk: int = 0  # tokens of the prompt that are computed now
    prompt_logprobs: list[TokenOut] = field(default_factory=list)  # of what was computed here
    kept: int = 0  # pages that the host has, or is getting
    turn: float = 0.0  # in the queue, see runtime.turns
    asks: int = 0  # how often prefill was told again where to write, since it was last heard
    asked_s: float = 0.0  # when it was last told
    landed: Row | None = None  # the right row, while the pages are compared with its sums
    doom: Failure | None = None  # its writer is gone: it fails unless the row is right
    failure: Failure | None = None  # first cause, while the engine still uses the pages
    finished: bool = False  # it ended well, while the engine still uses the pages
    prompt_tokens: int = field(init=False)
    most: int = field(init=False)  # output tokens
    ends: frozenset[int] = field(init=False)  # tokens that end the text

    def __post_init__(self) -> None:
        """Read once what is asked for every token."""
        self.prompt_tokens = len(self.submit.prompt)
        self.most = self.submit.sampling.max_tokens
        self.ends = self.submit.sampling.ending_token_ids

    @property
    def promised(self) -> int:
        """Pages that the room has not had yet, and will have in the end."""
        return self.need_pages - max(len(self.pages), self.kept)

    @property
    def prefill(self) -> str:
        """The instance that computes the prompt, "" when nobody else does."""
        return "" if self.local else self.submit.prefill

    @property
    def expires_s(self) -> float:
        """When the client stops waiting."""
        return self.submitted_s + self.submit.timeout_s

    @property
    def position(self) -> int:
        """Where the KV of the newest token goes, those counted that steps now under way choose."""
        return self.prompt_tokens + len(self.output) + self.in_steps - 1

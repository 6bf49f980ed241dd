"""A request once it is tokens: what front and rank say to each other, and what the engine reads."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

from daemons.protocol.causes import Failure
from daemons.protocol.chaos import FaultOrder
from daemons.protocol.ids import Attempt, Epoch, InstanceName, Port, Rank, Room
from daemons.protocol.topology import Fingerprint, Shape

TOP_LOGPROBS_LIMIT = 128  # as many as a metadata row has room for
GRAMMAR_LIMIT = 1 << 17  # characters of a grammar
BIASES_LIMIT = 1024  # tokens that one request biases
SALT_LIMIT = 256  # characters

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
TopCount = Annotated[int, msgspec.Meta(ge=0, le=TOP_LOGPROBS_LIMIT)]
Salt = Annotated[str, msgspec.Meta(max_length=SALT_LIMIT)]
Priority = Annotated[int, msgspec.Meta(ge=-100, le=100)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Bias = tuple[TokenId, Annotated[float, msgspec.Meta(ge=-100, le=100)]]


class GrammarKind(StrEnum):
    """The language that a grammar is written in."""

    JSON = "json"  # any JSON object; no text
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # the whole output matches
    EBNF = "ebnf"  # GBNF's dialect; the rule "root" comes first
    STRUCTURAL_TAG = "structural_tag"  # xgrammar's JSON form


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the output must be; whether it is well-formed is for ``front.grammars`` to say."""

    kind: GrammarKind
    text: Annotated[str, msgspec.Meta(max_length=GRAMMAR_LIMIT)] = ""


class Distribution(StrEnum):
    """Which distribution log-probabilities of the output are of."""

    RAW = "raw"  # the model's own: no penalty, bias, grammar, temperature, truncation
    SAMPLED = "sampled"  # after all of them: the one that the token was drawn from


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are chosen and when they end; checked by the front, trusted behind it."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 128
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    temperature: NonNegative = 1.0  # 0 is greedy
    top_p: Fraction = 1.0
    top_k: int = -1  # -1: all
    min_p: Fraction = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    seed: int = 0  # the front draws one when the client gave none
    stop_token_ids: tuple[TokenId, ...] = ()  # end after these (kept in the output)
    eos_token_ids: tuple[TokenId, ...] = ()  # of the model; ignored with ignore_eos
    ignore_eos: bool = False
    logprobs: TopCount | None = None  # None: none; k: the chosen token and the k best
    prompt_logprobs: TopCount | None = None
    prompt_logprobs_start: Annotated[int, msgspec.Meta(ge=0)] = 0  # first prompt position wanted
    logprobs_of: Distribution = Distribution.RAW  # those of a prompt are always raw
    logit_bias: Annotated[tuple[Bias, ...], msgspec.Meta(max_length=BIASES_LIMIT)] = ()
    grammar: Grammar | None = None

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Tokens that end the text when they are chosen; a grammar's end is always one."""
        eos = () if self.ignore_eos and self.grammar is None else self.eos_token_ids
        return frozenset((*self.stop_token_ids, *eos))


class TokenOut(msgspec.Struct, frozen=True, array_like=True):
    """One token that was chosen, with log-probabilities when asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # best first


class FinishReason(StrEnum):
    """Why a text ended well."""

    STOP = "stop"  # end of sequence, stop token or stop string
    LENGTH = "length"


def prompt_digest(prompt: Sequence[int]) -> str:
    """Return 16 hexadecimal digits that two prompts of one length share only if they are equal.

    Both legs make tokens of the text by themselves; a difference would be garbage with a 200.
    """
    return hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8).hexdigest()


# --- front -> rank ---------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A new request for this instance."""

    room: Room
    attempt: Attempt
    prompt: tuple[TokenId, ...]
    sampling: Sampling
    prefill: InstanceName  # which prefill serves the room (on prefill: its own name)
    timeout_s: Annotated[float, msgspec.Meta(gt=0)]  # what the client will wait, in total
    rid: str = ""
    priority: Priority = 0  # higher ones go first; waiting makes up for it
    cache_salt: Salt = ""  # cached pages are found by requests of the same salt only
    trace: str = ""  # id of the client's W3C trace

    @property
    def names(self) -> dict[str, str]:
        """What the client calls this request, for stories and closing lines."""
        given = {"rid": self.rid, "trace": self.trace}
        return {name: value for name, value in given.items() if value}


class Cancel(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The client does not want the room any more. Idempotent, any stage."""

    room: Room
    attempt: Attempt
    failure: Failure


class Finish(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The front saw a stop string: end the room well, without further tokens."""

    room: Room
    attempt: Attempt


class AskFor(StrEnum):
    """What a :class:`Snapshot` may hold, by types of ``protocol.story``."""

    STATUS = "status"  # {"status": WorkerStatus}
    ROOMS = "rooms"  # {"rooms": [RoomRow]}
    STORY = "story"  # {"stories": [Story]}


class Ask(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Please send a :class:`Snapshot`; ``room`` is for ``AskFor.STORY``."""

    question: int
    what: AskFor
    room: Annotated[int, msgspec.Meta(ge=0)] = 0


class Drain(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Take no more rooms (``on``), or take them again."""

    on: bool


class Chaos(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Arm a fault, or clear all; answered by a :class:`Snapshot` ``{"armed": [text], "refused"}``.

    With neither it only asks what is armed.
    """

    question: int
    order: FaultOrder | None = None
    clear: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """End the rank process now; rooms that remain fail with INSTANCE_STOPPING."""


class RouteFound(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Answer to :class:`LookUp`: where a prefill rank's inbox is, and whether we match it."""

    instance: InstanceName
    rank: Rank
    epoch: Epoch
    host: str
    port: Port
    fingerprint: Fingerprint


class RouteFailed(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Answer to :class:`LookUp` when the phone book is silent or does not know the instance."""

    instance: InstanceName
    failure: Failure


# --- rank -> front ---------------------------------------------------------------------------


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one step brought for one room; ``finish`` or ``failure`` makes it the last."""

    room: Room
    attempt: Attempt
    tokens: tuple[TokenOut, ...] = ()
    finish: FinishReason | None = None
    finish_token: int | None = None  # the token that ended it, if one did
    failure: Failure | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenOut, ...] | None = None  # from prompt_logprobs_start on


class Outputs(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The outputs of one step, all rooms together."""

    items: tuple[Output, ...]


class LookUp(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask the phone book for a prefill; ranks themselves speak no HTTP."""

    instance: InstanceName


class RankReady(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The rank has its weights, pools, sockets and (after a warm-up) can serve."""

    rank: int
    rank_port: int
    session: str
    transport: str  # what the transfer backend really uses
    max_tokens: int  # longest prompt + output that the pool can ever hold
    pages: int
    page_size: int
    fingerprint: Fingerprint
    shape: Shape = Shape()


class LastWords(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A defect of ours broke the rank, which ends now."""

    why: str


class Snapshot(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Answer to :class:`Ask`; plain JSON values, described by ``protocol.story``."""

    question: int
    body: dict[str, object]


ToRank = Submit | Cancel | Finish | Ask | Drain | Chaos | Stop | RouteFound | RouteFailed
ToFront = Outputs | RankReady | Snapshot | LookUp | LastWords

"""The sampler in the compiled kernels: one call for all rooms of a batch, log-probabilities too.

The definitions are those of ``daemons.engine.sampler``, whose grammars and random numbers it takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Several

import torch

from daemons.cluster.errors import OperatorError
from daemons.engine.native import abi
from daemons.engine.room import RoomState
from daemons.engine.sampler import (
    NO_TOKEN,
    NOT_FINITE,
    Allowed,
    allowed,
    ends_to_hold_back,
    uniform,
)
from daemons.protocol.generate import Distribution, TokenOut

_ERRORS = ("", NOT_FINITE, NO_TOKEN)  # by Drawn.fault
_NO_LOGS, _RAW, _DRAWN = range(3)


class NativeSampler:
    """Chooses in the kernels' memory; one caller at a time."""

    def __init__(self, team: abi.Team, vocab_size: int) -> None:
        """Reserve what every member of a team works in, 28 bytes a token.

        Raises:
            OperatorError: there is no memory.
        """
        self._team = team
        self._vocab_size = vocab_size
        self._address = team.library.calls.pd_sampler_new(team.members, vocab_size)
        if not self._address:
            raise OperatorError(f"no memory to sample from {vocab_size} tokens")

    def choose(self, logits: torch.Tensor, rooms: Several[RoomState]) -> list[TokenOut | str]:
        """Return the next token of each room, or why there is none; the rooms are not changed.

        Args:
            logits: raw, fp32 ``[rooms, vocabulary]``; not changed.
            rooms: in the same order.
        """
        guided = allowed(rooms, self._vocab_size)
        ends = [array("i", ends_to_hold_back(room, self._vocab_size)) for room in rooms]
        wishes = [
            self._wish(row, room, guided, out)
            for row, (room, out) in enumerate(zip(rooms, ends, strict=True))
        ]
        outs = self._run(logits, wishes)
        for row, error in guided.errors.items():
            if outs[row] != NOT_FINITE:
                outs[row] = error
        return outs

    def judge(
        self, logits: torch.Tensor, tokens: Several[int], tops: Several[int]
    ) -> list[TokenOut]:
        """Return each token with its raw log-probability and those of the likeliest.

        Args:
            logits: raw, fp32 ``[tokens, vocabulary]``.
            tokens: ids of the tokens.
            tops: for each, how many of the likeliest to name.
        """
        wishes = [
            abi.Wish(token=token, logs=_RAW, tops=min(top, self._vocab_size))
            for token, top in zip(tokens, tops, strict=True)
        ]
        outs = self._run(logits, wishes)
        return [
            TokenOut(token, float("nan")) if isinstance(out, str) else out
            for token, out in zip(tokens, outs, strict=True)
        ]

    def _wish(self, row: int, room: RoomState, guided: Allowed, ends: array[int]) -> abi.Wish:
        """Return what a room wants; what it points to is the room's, ``guided``'s and ``ends``."""
        sampling = room.asked.sampling
        wish = abi.Wish(temperature=sampling.temperature, token=-1)
        if sampling.temperature > 0:
            wish.top_p, wish.min_p = sampling.top_p, sampling.min_p
            wish.top_k = min(max(0, sampling.top_k), self._vocab_size)
            wish.share = uniform(sampling.seed, len(room.output))
        if room.said is not None:
            wish.said, wish.said_count = room.said.tokens.buffer_info()
            wish.counts, _ = room.said.counts.buffer_info()
            wish.repetition = sampling.repetition_penalty
            wish.frequency = sampling.frequency_penalty
            wish.presence = sampling.presence_penalty
        if room.bias is not None:
            wish.biased, wish.biased_count = room.bias[0].buffer_info()
            wish.biases, _ = room.bias[1].buffer_info()
        if row in guided.places:
            bits = guided.bits
            wish.allowed = bits.data_ptr() + guided.places[row] * bits.stride(0) * bits.itemsize
        if ends:
            wish.ends, wish.ends_count = ends.buffer_info()
        if sampling.logprobs is not None:
            is_raw = sampling.logprobs_of is Distribution.RAW
            wish.logs = _RAW if is_raw else _DRAWN
            wish.tops = min(sampling.logprobs, self._vocab_size)
        return wish

    def _run(self, logits: torch.Tensor, wishes: list[abi.Wish]) -> list[TokenOut | str]:
        rows = len(wishes)
        if rows == 0:
            return []
        logits = logits.contiguous()
        assert logits.dtype is torch.float32
        assert logits.shape == (rows, self._vocab_size)
        drawn = (abi.Drawn * rows)()
        widest = max(wish.tops for wish in wishes)
        names = array("i", bytes(4 * rows * widest))
        values = array("d", bytes(8 * rows * widest))
        self._team.library.calls.pd_sample(
            self._team.address,
            self._address,
            logits.data_ptr(),
            rows,
            (abi.Wish * rows)(*wishes),
            drawn,
            widest,
            names.buffer_info()[0],
            values.buffer_info()[0],
        )
        return [
            _told(own, wish, row * widest, names, values)
            for row, (own, wish) in enumerate(zip(drawn, wishes, strict=True))
        ]

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            self._team.library.calls.pd_sampler_free(self._address)


def _told(
    drawn: abi.Drawn, wish: abi.Wish, first: int, names: array[int], values: array[float]
) -> TokenOut | str:
    if drawn.fault:
        return _ERRORS[drawn.fault]
    if wish.logs == _NO_LOGS:
        return TokenOut(drawn.token)
    last = first + drawn.tops
    top = tuple(zip(names[first:last], values[first:last], strict=True))
    return TokenOut(drawn.token, drawn.log, top)

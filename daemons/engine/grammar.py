"""Grammars: which tokens may come next in a room's output, by xgrammar.

A grammar is compiled once per model, in a thread, and remembered within bounds; rooms share what
was compiled and each walks through it by itself. Where a walk is depends on the tokens said and on
nothing else, so a room that changes hands, or begins again, goes on as if it had not.

What may come after a token is looked for from the moment the token is known, by one thread for all
rooms that leaves the GIL alone: a forward lies between, so a step waits for the rest at most.

xgrammar is optional and is imported on first use: no daemon waits for it at its start. It names
``transformers`` in annotations only, so a stand-in takes that package's place while it is imported.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Sequence as Several
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from daemons.engine.json_schema import unheld
from daemons.protocol.generate import Grammar, GrammarKind, Sampling

COMPILE_S = 20.0  # a room waits so long for its grammar, then fails
MASK_S = 0.25  # processor time for what may come next; a room that needs more fails
COMPILED_LIMIT = 256  # grammars that are remembered
COMPILED_BYTES_LIMIT = 256 << 20  # of all that are remembered
GRAMMAR_BYTES_LIMIT = 64 << 20  # of one grammar, compiled
WHITESPACE_LIMIT = 20  # characters between two words of JSON; without a limit a text may never end
WORD_BITS = 32
NOT_INSTALLED = "grammars need xgrammar, which is not installed here"
_MASKS = ThreadPoolExecutor(1, "mask")  # one: a walk's looks are never at the same time
_CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")  # all but line ends
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?")


class BadGrammar(Exception):
    """A grammar that cannot be had; the text says why and is fit for a client."""


def is_installed() -> bool:
    """Say whether xgrammar is there, without importing it."""
    return importlib.util.find_spec("xgrammar") is not None


@dataclass(slots=True)
class Compiler:
    """Makes grammars of one model; threads take turns, the work itself leaves the GIL alone.

    Attributes:
        directory: the model's, where its tokenizer is.
        vocab_size: of the model's logits; ids that the tokenizer lacks are never allowed.
    """

    directory: Path
    vocab_size: int
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _made: dict[bool, Any] = field(default_factory=dict)  # xgrammar.GrammarCompiler, by is_json

    def compile(self, grammar: Grammar) -> Any:
        """Return an ``xgrammar.CompiledGrammar``.

        Raises:
            BadGrammar: it is not well-formed, or too large; or xgrammar is not installed.
        """
        is_json = grammar.kind in (GrammarKind.JSON, GrammarKind.JSON_SCHEMA)
        with self._turn:
            if is_json not in self._made:
                self._made[is_json] = self._make(is_json=is_json)
            try:
                compiled = _compiled(self._made[is_json], grammar)
            except (RuntimeError, ValueError, TypeError) as error:
                raise BadGrammar(f"{grammar.kind}: {_reason(error)}") from error
        if compiled.memory_size_bytes > GRAMMAR_BYTES_LIMIT:
            raise BadGrammar(
                f"{grammar.kind}: {compiled.memory_size_bytes >> 20} MiB when compiled,"
                f" the limit is {GRAMMAR_BYTES_LIMIT >> 20}"
            )
        return compiled

    def _make(self, *, is_json: bool) -> Any:
        xgrammar = _library()
        raw = (self.directory / "tokenizer.json").read_text()
        kind = xgrammar.TokenizerInfo._detect_metadata_from_hf(raw)
        words = _words(raw, self.vocab_size)

        def told() -> Any:
            return xgrammar.TokenizerInfo(
                words,
                vocab_type=kind["vocab_type"],
                vocab_size=self.vocab_size,
                stop_token_ids=[],  # every walk names its own
                add_prefix_space=kind["add_prefix_space"],
            )

        if is_json:
            # xgrammar lets them into strings whose length is limited; JSON escapes them.
            for token, text in enumerate(told().decoded_vocab):
                if _CONTROL.search(text):
                    words[token] = ""
        return xgrammar.GrammarCompiler(told(), max_threads=1, cache_enabled=False)


@dataclass(slots=True)
class Grammars:
    """What was compiled for a model, the least recently used forgotten first."""

    compiler: Compiler
    _known: OrderedDict[Grammar, Future[Any]] = field(default_factory=OrderedDict)

    def walk(self, grammar: Grammar, sampling: Sampling, said: Several[int]) -> Walk:
        """Return a walk that has come as far as ``said``; compiling goes on meanwhile."""
        eos, stops = sampling.eos_token_ids, sampling.stop_token_ids
        deadline_s = time.monotonic() + COMPILE_S
        return Walk(self.prepare(grammar), eos or stops, stops, list(said), deadline_s)

    def prepare(self, grammar: Grammar) -> Future[Any]:
        """Have a grammar compiled, unless it is or was."""
        found = self._known.get(grammar)
        if found is None:
            found = self._known[grammar] = Future()
            work = threading.Thread(
                target=self._work, args=(grammar, found), name="grammar", daemon=True
            )
            work.start()
        self._known.move_to_end(grammar)
        self._forget()
        return found

    def _work(self, grammar: Grammar, told: Future[Any]) -> None:
        try:
            told.set_result(self.compiler.compile(grammar))
        except Exception as error:  # noqa: BLE001 - the rooms that wait are told
            told.set_exception(error)

    def _forget(self) -> None:
        sizes = [_size(compiled) for compiled in self._known.values()]
        total = sum(sizes)
        for size in sizes[:-1]:
            if len(self._known) <= COMPILED_LIMIT and total <= COMPILED_BYTES_LIMIT:
                return
            self._known.popitem(last=False)
            total -= size


@dataclass(slots=True)
class Walk:
    """One room's way through a grammar.

    Attributes:
        compiled: the grammar, as soon as it is there.
        ends: tokens that end the text when the grammar is complete, and are nothing else to it.
        stops: more such tokens, which may be words of the grammar too.
        said: tokens that are yet to be walked.
        deadline_s: by the monotonic clock; the grammar is there by then, or the room fails.
    """

    compiled: Future[Any]
    ends: tuple[int, ...]
    stops: tuple[int, ...]
    said: list[int]
    deadline_s: float
    _matcher: Any = None  # xgrammar.GrammarMatcher
    _words: int = 0  # of a row of bits
    _next: Future[torch.Tensor] | None = None  # what may come next, when it was looked for already

    def add(self, token: int) -> None:
        """Go on by a token that was chosen."""
        self.said.append(token)
        if self._matcher is not None:
            self._next = _MASKS.submit(self._mask)

    def allow(self, bits: torch.Tensor, row: int) -> None:
        """Write which tokens may come next.

        Args:
            bits: int32 ``[rooms, ceil(vocabulary / 32)]`` on the CPU; bit ``token % 32`` of word
                ``token // 32``.
            row: which of its rows is this room's.

        Raises:
            BadGrammar: no grammar could be made, what was said is not of it, or it takes too much.
        """
        if self._matcher is None:
            self._matcher, self._words = self._begin(), bits.shape[1]
        found, self._next = self._next, None
        bits[row] = self._mask() if found is None else found.result()

    def _mask(self) -> torch.Tensor:
        """Go to the end of what was said; returns a row of bits."""
        while self.said:
            token = self.said[0]
            if self._matcher.is_terminated() or not self._matcher.accept_token(token):
                raise BadGrammar(f"the grammar does not go on with token {token}, which was said")
            self.said.pop(0)
        if self._matcher.is_terminated():
            raise BadGrammar("the text has ended, as its grammar has")
        begun = time.thread_time()
        bits = torch.full((1, self._words), -1, dtype=torch.int32)
        self._matcher.fill_next_token_bitmask(bits, 0)
        if self._matcher.is_completed():
            for token in self.stops:
                bits[0, token // WORD_BITS] |= _bit(token)
        if time.thread_time() - begun > MASK_S:
            raise BadGrammar(f"a step of it takes more than {1e3 * MASK_S:g} ms")
        return bits[0]

    def _begin(self) -> Any:
        if not self.ends:
            raise BadGrammar("a text with a grammar needs a token to end with; there is none")
        try:
            compiled = self.compiled.result(max(0.0, self.deadline_s - time.monotonic()))
        except NotYet:
            raise BadGrammar(f"the grammar was not compiled within {COMPILE_S:g} s") from None
        return _library().GrammarMatcher(compiled, override_stop_tokens=list(self.ends))


def new_bits(rooms: int, vocab_size: int) -> torch.Tensor:
    """Return bits for :meth:`Walk.allow`, all allowed: int32 ``[rooms, ceil(vocab_size / 32)]``."""
    return torch.full((rooms, -(-vocab_size // WORD_BITS)), -1, dtype=torch.int32)


def hold_back(bits: torch.Tensor, tokens: Several[int]) -> None:
    """Forbid tokens in one row, unless nothing else is allowed."""
    kept = bits.clone()
    for token in tokens:
        kept[token // WORD_BITS] &= ~_bit(token)
    if bool(kept.any()):
        bits.copy_(kept)


def forbidden(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return which tokens are not allowed, bool ``[rooms, vocab_size]``, on the bits' device."""
    if bits.device.type == "cpu":  # half of what torch takes
        allowed = np.unpackbits(bits.numpy().view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(allowed[:, :vocab_size] == 0)
    return _forbidden_by_shifts(bits, vocab_size)


def _forbidden_by_shifts(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    places = torch.arange(WORD_BITS, dtype=torch.int32, device=bits.device)
    spread = (bits.unsqueeze(-1) >> places) & 1  # [rooms, words, 32]
    return (spread == 0).flatten(1)[:, :vocab_size]


def _bit(token: int) -> int:
    place = token % WORD_BITS
    return -(1 << place) if place == WORD_BITS - 1 else 1 << place


def _compiled(compiler: Any, grammar: Grammar) -> Any:
    text = grammar.text
    match grammar.kind:
        case GrammarKind.JSON:
            return _json(compiler, '{"type": "object"}')
        case GrammarKind.JSON_SCHEMA:
            _check_schema(text)
            return _json(compiler, text)
        case GrammarKind.REGEX:
            return compiler.compile_regex(text)
        case GrammarKind.EBNF:
            return compiler.compile_grammar(text)
        case GrammarKind.STRUCTURAL_TAG:
            return compiler.compile_structural_tag(text)


def _json(compiler: Any, schema: str) -> Any:
    return compiler.compile_json_schema(
        schema, any_whitespace=True, strict_mode=True, max_whitespace_cnt=WHITESPACE_LIMIT
    )


def _check_schema(text: str) -> None:
    try:
        why = unheld(json.loads(text))
    except RecursionError:
        why = "it is nested too deeply"
    if why:
        raise ValueError(why)


def _words(raw: str, vocab_size: int) -> list[str]:
    """Return the vocabulary by id, special tokens as "": no text may be spelled with them."""
    words = [""] * vocab_size
    special = {token["id"] for token in json.loads(raw)["added_tokens"] if token["special"]}
    for word, token in Tokenizer.from_str(raw).get_vocab().items():
        if token < vocab_size and token not in special:
            words[token] = word
    return words


def _library() -> Any:
    """Import xgrammar.

    Raises:
        BadGrammar: it is not installed.
    """
    if "xgrammar" in sys.modules:
        return sys.modules["xgrammar"]
    if not is_installed():
        raise BadGrammar(NOT_INSTALLED)
    stand_in = types.ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor"):
        setattr(stand_in, name, type(name, (), {}))
    stands_in = sys.modules.setdefault("transformers", stand_in) is stand_in
    try:
        return importlib.import_module("xgrammar")
    finally:
        if stands_in:
            del sys.modules["transformers"]


def _size(compiled: Future[Any]) -> int:
    if not compiled.done() or compiled.exception() is not None:
        return 0
    return int(compiled.result().memory_size_bytes)


def _reason(error: Exception) -> str:
    """Return the library's words without its own source lines, in one line."""
    return " ".join(_PLACE.sub("", str(error)).split())[:500]

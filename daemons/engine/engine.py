"""One rank's model, KV pools and sampler, behind a few blocking verbs.

One thread calls ``begin``, ``forward``, ``keep``, ``restore`` and ``end``, in order; nothing here
is locked. A page is a number here: who owns it, and whether it may be written, is the caller's
business.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from pathlib import Path

import torch

from daemons.engine.attention import Attend
from daemons.engine.batch import Batch, Span, fault, window_fault
from daemons.engine.config import EngineConfig
from daemons.engine.cores import listed
from daemons.engine.device import Place, bind, choose_place, kv_place, set_threads
from daemons.engine.grammar import Compiler, Grammars
from daemons.engine.graphs import DecodeGraphs, recorded
from daemons.engine.kernels import Attention, choose_attention, choose_sampler, native_team
from daemons.engine.kv_cache import KvMemory
from daemons.engine.models import Model, load_model
from daemons.engine.models.spec import max_model_len
from daemons.engine.native.decoder import NativeDecoder
from daemons.engine.progress import Progress
from daemons.engine.reservation import reserved
from daemons.engine.room import RoomState, begin_room, judged_positions, resolved, takes_largest
from daemons.engine.sampler import NOT_FINITE, Sampler
from daemons.engine.step import Item, Result, Sequence
from daemons.engine.weights import read_json
from daemons.kv.window import Windows
from daemons.protocol.generate import Grammar, Sampling, TokenOut
from daemons.protocol.handshake import KvRegion
from daemons.protocol.ids import RoomKey
from daemons.protocol.topology import Fingerprint

Likeliest = Callable[[Attend, "array[int]"], "array[int]"]
Scores = Callable[[Attend, "array[int]"], torch.Tensor]
_JUDGED_ROWS = 128  # prompt log-probabilities: rows of logits at once, for memory's sake
_WARM_ROOM = RoomKey(0, 0)  # a room is never 0, so it meets no other


@dataclass(slots=True)
class Engine:
    """A model that is loaded, with its KV pools.

    Attributes:
        fingerprint: what a peer must have too before pages may be exchanged.
        vocab_size: token ids are below it.
        max_model_len: the longest prompt + output, in tokens.
        eos_token_ids: tokens with which this model ends a text.
        windows: what the layers see.
        pages: of the full pool, numbered from 0; all of them are the caller's.
        window_pages: the same of the window pool; 0: there is none, and items name none.
        progress: how far the forward under way is.
    """

    fingerprint: Fingerprint
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    windows: Windows
    pages: int
    window_pages: int
    progress: Progress
    _place: Place
    _model: Model
    _memory: KvMemory
    _attention: Attention
    _sampler: Sampler
    _likeliest: Likeliest | None  # a forward and its best tokens at once, where the model can
    _scores: Scores | None  # a forward and its logits
    _warm_tokens: int
    _grammars: Grammars
    _graph_rooms: int  # of the largest batch of steps to record; 0: none
    _graphs: DecodeGraphs | None = None
    _rooms: dict[RoomKey, RoomState] = field(default_factory=dict)
    _kept: dict[RoomKey, torch.Tensor] = field(default_factory=dict)  # in host memory

    @staticmethod
    def load(
        config: EngineConfig,
        model_dir: Path,
        *,
        kv_tokens: int | None = None,
        window_rooms: int | None = None,
    ) -> Engine:
        """Read a model and reserve its KV pools.

        Args:
            config: how to run it.
            model_dir: where it is.
            kv_tokens: goes before the configuration's.
            window_rooms: how many rooms hold window pages at once; None: two batches of them.

        Raises:
            OperatorError: no such device, an architecture that is not served, broken weights, a
                pool (with what is free, what is missing and what to set) or length that cannot be.
        """
        cores = listed(config.cores)
        bind(cores)
        set_threads(config.threads)
        place = choose_place(config)
        team = native_team(config, place, cores)
        model, name = load_model(model_dir, place, team, config.weights)
        if isinstance(model, NativeDecoder):
            set_threads(1)  # what is left to torch is small, and its threads spin beside the team's
        spec = model.spec
        kv = kv_place(config, place)
        tokens = config.kv_tokens if kv_tokens is None else kv_tokens
        memory = reserved(config, spec, kv, tokens, window_rooms or 2 * config.batch_rooms)
        return Engine(
            fingerprint=Fingerprint(
                model=name,
                dtype=kv.dtype_name,
                page_size=config.page_size,
                layers=spec.layers,
                kv_heads=spec.kv_heads,
                head_dim=spec.head_dim,
            ),
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len(config, spec.positions),
            eos_token_ids=eos_token_ids(model_dir),
            windows=Windows(config.page_size, spec.windows),
            pages=memory.full.pages,
            window_pages=memory.window.pages,
            progress=Progress(spec.layers),
            _place=place,
            _model=model,
            _memory=memory,
            _attention=choose_attention(memory, spec.heads, team, place.dtype),
            _sampler=choose_sampler(team, spec.vocab_size),
            _likeliest=model.likeliest if isinstance(model, NativeDecoder) else None,
            _scores=model.scores if isinstance(model, NativeDecoder) else None,
            _warm_tokens=min(config.chunk_tokens, config.batch_tokens),
            _grammars=Grammars(Compiler(model_dir, spec.vocab_size)),
            _graph_rooms=config.batch_rooms if config.graphs == "auto" else 0,
        )

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.windows.page_size

    def kv_regions(self) -> tuple[KvRegion, ...]:
        """Return where the pages lie, by (layer, kind, head).

        Layers with a window have ``window_pages`` each where there are any, the others ``pages``.
        """
        return self._memory.regions()

    def kv_memory(self) -> tuple[int, int]:
        """Return the address and the bytes of both pools, one piece of memory."""
        memory = self._memory.memory
        return memory.data_ptr(), memory.nbytes

    def prepare(self, grammar: Grammar, told: Callable[[], None]) -> None:
        """Have a grammar compiled in a thread; ``told`` is called when it is there or cannot be.

        It is called by any thread, and at once when the grammar is known.
        """
        self._grammars.prepare(grammar).add_done_callback(lambda _: told())

    def begin(self, sequence: Sequence) -> None:
        """Make a room known, with what was asked and what was already said.

        A room that is known already begins anew. What is wrong with it is told by ``forward``.
        """
        self._rooms[sequence.key] = begin_room(sequence, self.vocab_size, self._grammars)

    def end(self, key: RoomKey) -> None:
        """Forget a room and what is kept of it; harmless when it is not known."""
        self._rooms.pop(key, None)
        self._kept.pop(key, None)

    @torch.inference_mode()
    def keep(self, key: RoomKey, pages: Several[int]) -> None:
        """Copy a room's pages of the full pool, in token order, into host memory."""
        self._kept[key] = self._memory.full.copy_out(pages)

    @torch.inference_mode()
    def restore(self, key: RoomKey, pages: Several[int]) -> None:
        """Copy what is kept of a room into as many pages; nothing is kept then.

        Raises:
            KeyError: nothing is kept of it.
            ValueError: another number of pages; what is kept stays.
        """
        self._memory.full.copy_in(pages, self._kept[key])
        del self._kept[key]

    def forward(self, items: Several[Item]) -> list[Result]:
        """Run one batch, prefill chunks and decode steps together; results in order of items.

        An item that cannot be run has its ``error`` and changes nothing; the others go on. When
        the whole batch fails (out of memory), the exception is the caller's.

        Prompt log-probabilities need what the token before left: a room that asks for them is run
        from position 0, or from below its ``prompt_logprobs_start``.
        """
        good: list[Item] = []
        states: list[RoomState] = []
        errors = self._checked(items, good, states)
        results = self._run(good, states) if good else []
        if any(errors):
            done = iter(results)
            results = [
                Result(item.key, error=error) if error else next(done)
                for item, error in zip(items, errors, strict=True)
            ]
        return results

    def warm_up(self) -> None:
        """Run a chunk and a few decode steps once; call it before any page is in use."""
        tokens = min(self._warm_tokens, self.pages * self.page_size, self.max_model_len) - 1
        pages = tuple(range(-(-(tokens + 1) // self.page_size)))
        window = pages if self.window_pages else ()
        greedy, drawn = Sampling(temperature=0.0), Sampling(temperature=1.0)  # two ways to run
        steps = [(greedy, (0,) * max(1, tokens), 0), (drawn, (0,), tokens), (greedy, (0,), tokens)]
        for sampling, part, start in steps if tokens > 0 else steps[:1]:
            self.begin(Sequence(_WARM_ROOM, sampling, (0,)))
            self.forward([Item(_WARM_ROOM, part, start, pages, samples=True, window=window)])
        self.end(_WARM_ROOM)
        if self._graph_rooms:
            longest = min(self.max_model_len, self.pages * self.page_size)
            parts = self._model, self._memory, self._attention
            self._graphs = recorded(*parts, self._graph_rooms, longest)
        self._memory.full.clear(range(len(pages)))
        self._memory.window.clear(range(len(window)))

    def _checked(
        self, items: Several[Item], good: list[Item], states: list[RoomState]
    ) -> list[str]:
        """Return what is wrong with each item, "" for nothing.

        Those that can be run are added to ``good``, their tokens known, and their rooms to
        ``states``.
        """
        errors = []
        taken: set[RoomKey] = set()
        for item in items:
            state = self._rooms.get(item.key)
            if state is None:
                error = f"room {item.key} has not begun"
            elif item.key in taken:
                error = f"room {item.key} is twice in the batch"
            else:
                known, error = resolved(state, item)
                error = error or self._fault(known, state)
                if not error:
                    good.append(known)
                    states.append(state)
            taken.add(item.key)
            errors.append(error)
        return errors

    def _fault(self, item: Item, state: RoomState) -> str:
        table, window_table = state.table, state.window_table
        error = fault(
            item,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            pages=self.pages,
            page_size=self.page_size,
            known=table.pages,
        )
        if not error and self.window_pages:
            error = window_fault(
                item,
                window=self.windows.largest,
                pages=self.window_pages,
                page_size=self.page_size,
                known=window_table.pages,
            )
        if error:
            return error
        if item.pages is not table.pages:
            table.follow(item.pages)
        if item.window is not window_table.pages:
            window_table.follow(item.window)
        return state.fault or self._gap(item, state)

    def _gap(self, item: Item, state: RoomState) -> str:
        """Say so when a wanted log-probability has no token before it that was run here."""
        judged = judged_positions(state, item)
        if not judged or judged[0] != item.start or item.start == 0:
            return ""
        if state.last_hidden is not None and state.last_position == item.start - 1:
            return ""
        return f"prompt log-probabilities from {item.start} on, but {item.start - 1} was not run"

    def _run(self, items: list[Item], states: list[RoomState]) -> list[Result]:
        tables = [state.table for state in states]
        windows = [state.window_table for state in states] if self.window_pages else ()
        batch = Batch(items, tables, self.page_size, self._place.device, self.progress, windows)
        if self._likeliest is not None and all(map(takes_largest, items, states)):
            return self._run_greedily(self._likeliest, batch, states)
        is_judged = any(state.asked.sampling.prompt_logprobs is not None for state in states)
        if self._scores is not None and not is_judged:
            return self._run_sampling(self._scores, batch, states)
        return self._run_any(batch, states)

    def _run_greedily(self, best: Likeliest, batch: Batch, states: list[RoomState]) -> list[Result]:
        """Run a batch that needs neither logits nor torch."""
        tokens = best(self._attend(batch), _sampled_rows(batch))
        return _results(batch, states, [TokenOut(t) if t >= 0 else NOT_FINITE for t in tokens])

    def _run_sampling(self, scores: Scores, batch: Batch, states: list[RoomState]) -> list[Result]:
        """Run a batch of which nothing but its next tokens is wanted."""
        logits = scores(self._attend(batch), _sampled_rows(batch))
        return _results(batch, states, self._sampler.choose(logits, _sampling(batch, states)))

    @torch.inference_mode()
    def _run_any(self, batch: Batch, states: list[RoomState]) -> list[Result]:
        hidden = self._graphs.hidden(batch) if self._graphs is not None else None
        if hidden is None:
            hidden = self._model.hidden(batch, self._attend(batch))
        outs: Several[TokenOut | str] = ()
        if rooms := _sampling(batch, states):
            rows = torch.tensor(_sampled_rows(batch), device=hidden.device)
            outs = self._sampler.choose(self._model.logits(hidden[rows]), rooms)
        results = _results(batch, states, outs)
        for place, (item, state) in enumerate(zip(batch.items, states, strict=True)):
            judged = self._judge(hidden, batch.spans[place], item, state)
            if judged and not results[place].error:
                results[place] = Result(item.key, results[place].token, judged)
        return results

    def _attend(self, batch: Batch) -> Attend:
        return self._attention(self._memory, batch)

    def _judge(
        self, hidden: torch.Tensor, span: Span, item: Item, state: RoomState
    ) -> tuple[TokenOut, ...]:
        """Return the prompt log-probabilities of an item, and keep what the next chunk needs."""
        top = state.asked.sampling.prompt_logprobs
        if top is None:
            return ()
        own = hidden[span.first : span.last + 1]
        before, state.last_hidden = state.last_hidden, own[-1:].clone()
        state.last_position = item.start + span.tokens - 1
        judged = judged_positions(state, item)
        if not judged:
            return ()
        outs = [TokenOut(item.tokens[0])] if judged[0] == 0 else []
        positions = [position for position in judged if position > 0]
        for first in range(0, len(positions), _JUDGED_ROWS):
            some = positions[first : first + _JUDGED_ROWS]
            rows = own[max(0, some[0] - 1 - item.start) : some[-1] - item.start]
            if some[0] == item.start:  # judged by the chunk before
                assert before is not None
                rows = torch.cat((before, rows))
            tokens = [item.tokens[position - item.start] for position in some]
            logits = self._model.logits(rows)
            outs += self._sampler.judge(logits, tokens, [top] * len(tokens))
        return tuple(outs)


def _sampled_rows(batch: Batch) -> array[int]:
    """Return the rows after which a token is chosen."""
    pairs = zip(batch.items, batch.lasts, strict=True)
    return array("i", [row for item, row in pairs if item.samples])


def _sampling(batch: Batch, states: list[RoomState]) -> list[RoomState]:
    """Return the rooms for which a token is chosen."""
    return [state for item, state in zip(batch.items, states, strict=True) if item.samples]


def _results(batch: Batch, states: list[RoomState], outs: Several[TokenOut | str]) -> list[Result]:
    """Return a result by item, ``outs`` for those that sample; the rooms take note of them."""
    chosen, results = iter(outs), []
    for item, state in zip(batch.items, states, strict=True):
        out = next(chosen) if item.samples else None
        if isinstance(out, str):
            results.append(Result(item.key, error=out))
            continue
        if out is not None:
            state.add(out.id)
        results.append(Result(item.key, out))
    return results


def eos_token_ids(model_dir: Path) -> tuple[int, ...]:
    """Return the tokens that end a text, from ``generation_config.json``, else ``config.json``."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(model_dir / name, optional=True).get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()

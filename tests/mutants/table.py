"""The breakages: each would let another request's bytes into an answer, or lose an end."""

from __future__ import annotations

from typing import NamedTuple

SIM = "sim:"  # followed by a number of seeds
CORE = "tests/unit/daemons"
SEEDS = f"{SIM}150"


class Mutant(NamedTuple):
    """``old`` stands once in ``file``; ``test`` is a test's id, or ``sim:`` and seeds."""

    name: str
    file: str
    old: str
    new: str
    test: str


QUARANTINE = "daemons/decode/quarantine.py"
ADMISSION = "daemons/decode/admission.py"
DECODE_ENDS = "daemons/decode/ends.py"
ENGINE_STEPS = "daemons/decode/engine_steps.py"
RETRACTION = "daemons/decode/retraction.py"
HAND_OVER = "daemons/decode/hand_over.py"
MEMORY = "daemons/decode/memory.py"
PREFILL_STEPS = "daemons/prefill/engine_steps.py"
PREFILL_ENDS = "daemons/prefill/ends.py"
LANES = "daemons/prefill/write_lanes.py"

TREE = "daemons/kv/prefix_tree.py"
LEDGER = "daemons/kv/ledger.py"
TABLE = "daemons/kv/window_table.py"
WINDOWS = "daemons/kv/window_cache.py"

CMA = "daemons/transfer/cma.py"
COPIER = "daemons/transfer/native/move.cpp"
COPIER_TEST = f"{CORE}/transfer/native/test_mover.py"

MUTANTS = (
    Mutant(
        "quarantine is released by a timer",
        QUARANTINE,
        "if held.settles_s is not None and held.settles_s <= awake_s",
        "if now - held.asked_s >= 0.5",
        SEEDS,
    ),
    Mutant(
        "a cut write counts as clean",
        QUARANTINE,
        "held.settles_s = awake_s if fence is Fence.CLEAN else awake_s + self.settle_s",
        "held.settles_s = awake_s",
        SEEDS,
    ),
    Mutant(
        "a dead writer's bytes are not waited for",
        QUARANTINE,
        "held.settles_s = self._awake(now) + self.settle_s",
        "held.settles_s = self._awake(now)",
        SEEDS,
    ),
    Mutant(
        "time in the freezer counts as waiting",
        QUARANTINE,
        "self._awake_s += min(passed_s, self.settle_s / LOOKS)",
        "self._awake_s += passed_s",
        SEEDS,
    ),
    Mutant(
        "the abort is not repeated",
        QUARANTINE,
        "if held.settles_s is None and now - held.asked_s >= ABORT_EVERY_S",
        "if False",
        SEEDS,
    ),
    Mutant(
        "failed pages are free at once",
        DECODE_ENDS,
        "            self._isolate(request, failure, now, fence)",
        "            self._isolate(request, failure, now, Fence.CLEAN)",
        SEEDS,
    ),
    Mutant(
        "what prefill summed is not compared",
        HAND_OVER,
        "        if event.row.sums:\n",
        "        if False:\n",
        SEEDS,
    ),
    Mutant(
        "sums that differ are taken for the same",
        HAND_OVER,
        "        if event.wrong:\n",
        "        if False:\n",
        SEEDS,
    ),
    Mutant(
        "a row is offered as it is",
        ADMISSION,
        "        self.out.do(ZeroRow(row))\n",
        "",
        SEEDS,
    ),
    Mutant(
        "FAILED is said while writes are under way",
        PREFILL_ENDS,
        "        if request.unsettled:\n            return\n        if self.tombs",
        "        if self.tombs",
        SEEDS,
    ),
    Mutant(
        "pages are free while a step ahead uses them",
        ENGINE_STEPS,
        "            request.in_steps -= 1\n        return request",
        "            request.in_steps = 0\n        return request",
        SEEDS,
    ),
    Mutant(
        "a step ahead runs the token before",
        "daemons/decode/running_batch.py",
        "token = NEWEST if under_way else request.output[-1]",
        "token = request.output[-1]",
        SEEDS,
    ),
    Mutant(
        "an older token is taken for the newest",
        "daemons/engine/room.py",
        "if not state.output or item.start != place:",
        "if not state.output:",
        f"{CORE}/engine/test_room.py",
    ),
    Mutant(
        "an ended text goes on",
        "daemons/engine/room.py",
        "if newest in state.ends:",
        "if False:",
        f"{CORE}/engine/test_room.py",
    ),
    Mutant(
        "the kernels look for a window's pages from where its table begins",
        "daemons/engine/native/attention.py",
        "own[_SPAN * place + _PAGES_AT] = len(pages) - item.window_first",
        "own[_SPAN * place + _PAGES_AT] = len(pages)",
        f"{CORE}/engine/native/test_attention.py",
    ),
    Mutant(
        "window pages are counted from the text's beginning",
        "daemons/engine/batch.py",
        "item.start - item.window_first * self.page_size,",
        "item.start,",
        f"{CORE}/engine/test_batch.py",
    ),
    Mutant(
        "a window table may begin behind what is seen",
        "daemons/engine/batch.py",
        "if not 0 <= item.window_first <= first or end < needed:",
        "if item.window_first < 0 or end < needed:",
        f"{CORE}/engine/test_batch.py",
    ),
    Mutant(
        "a replayed step reads a window table from its first page",
        "daemons/engine/graphs.py",
        "table, skipped = batch.window_tables[place], first - item.window_first",
        "table, skipped = batch.window_tables[place], 0",
        f"{CORE}/engine/test_graphs.py",
    ),
    Mutant(
        "a decode prefills by itself although it may not",
        "daemons/front/validate.py",
        "if not config.local_prefill:",
        "if False:",
        f"{CORE}/front/test_validate.py",
    ),
    Mutant(
        "an ended room is not remembered",
        "daemons/runtime/tombstones.py",
        "        stone = self._stones.get(key)\n",
        "        stone = None\n",
        SEEDS,
    ),
    Mutant(
        "pages are free while a forward uses them",
        PREFILL_ENDS,
        "        if request.step_tokens:\n            return\n",
        "",
        SEEDS,
    ),
    Mutant(
        "silence counts as death",
        "daemons/runtime/liveness.py",
        "self._watched[peer].life = Life.SUSPECT",
        "self.bury(peer)",
        SEEDS,
    ),
    Mutant(
        "a message for an earlier life is obeyed",
        "daemons/runtime/mailbox.py",
        "if message.to_epoch != self._me.epoch:",
        "if False:",
        f"{CORE}/runtime/test_mailbox.py",
    ),
    Mutant(
        "a row of another room is taken",
        "daemons/protocol/metadata.py",
        "if (room, attempt) != key:",
        "if False:",
        f"{CORE}/protocol/test_metadata.py",
    ),
    Mutant(
        "a torn row is taken",
        "daemons/protocol/metadata.py",
        "or crc != zlib.crc32(whole) or",
        "or",
        f"{CORE}/protocol/test_metadata.py",
    ),
    Mutant(
        "the row is written before the pages",
        LANES,
        "        try:\n            self._write_slice(task, way, layers)\n",
        "        try:\n            if command.row is not None:\n"
        "                self._timed(task, way, table([self._row(command, way.buffers)]))\n"
        "            self._write_slice(task, way, layers)\n",
        f"{CORE}/prefill/test_write_lanes.py",
    ),
    Mutant(
        "a write that was called off is done all the same",
        LANES,
        "if key in self._called_off or progress.is_broken(command.step):",
        "if progress.is_broken(command.step):",
        f"{CORE}/prefill/test_write_lanes.py",
    ),
    Mutant(
        "layers of a broken forward are sent",
        LANES,
        "if key in self._called_off or progress.is_broken(command.step):",
        "if key in self._called_off:",
        f"{CORE}/prefill/test_write_lanes.py",
    ),
    Mutant(
        "a layer is sent before it is done",
        LANES,
        "layers = progress.layers_of(command.step) if command.step else progress.layers",
        "layers = progress.layers",
        f"{CORE}/prefill/test_write_lanes.py",
    ),
    Mutant(
        "a page that is not full leaves with its chunk",
        "daemons/prefill/inflight_queue.py",
        "else computed // page_size",
        "else -(-computed // page_size)",
        SEEDS,
    ),
    Mutant(
        "the first token of a window does not travel",
        "daemons/kv/window.py",
        "tokens - window + 1)",
        "tokens - window + 2)",
        SEEDS,
    ),
    Mutant(
        "a later write forgets where in the prompt it begins",
        "daemons/prefill/inflight_queue.py",
        "window_first=window_begin",
        "window_first=0",
        SEEDS,
    ),
    Mutant(
        "a chunk that was not sent is taken for sent",
        PREFILL_STEPS,
        "if request.is_skipped:",
        "if False:",
        f"{CORE}/prefill/test_engine_steps.py",
    ),
    Mutant(
        "pages of a failed room are free while a forward writes them",
        PREFILL_ENDS,
        "        if request.step_tokens:\n            return\n        if request.pages",
        "        if request.pages",
        SEEDS,
    ),
    Mutant(
        "an unknown trouble of a write counts as clean",
        LANES,
        "return WriteFailed(task.command.key, cut=True, detail=why)",
        "return WriteFailed(task.command.key, cut=False, detail=why)",
        f"{CORE}/prefill/test_write_lanes.py",
    ),
    Mutant(
        "after a trouble that nobody foresaw the room's row goes",
        LANES,
        "        self._stop(task)\n        return WriteFailed(",
        "        return WriteFailed(",
        f"{CORE}/prefill/test_write_lanes.py",
    ),
    Mutant(
        "what was raised keeps the agent of a failed write",
        "daemons/transfer/nixl.py",
        "                _clear_frames(error)  # they hold the agent\n",
        "",
        f"{CORE}/transfer/test_nixl.py",
    ),
    Mutant(
        "a failed write's engine lives on",
        "daemons/transfer/mooncake.py",
        "    if sender is not None:\n        sender.end()\n",
        "    globals().setdefault('kept', []).append(sender)\n",
        "tests/conformance/test_transfer_backend.py",
    ),
    Mutant(
        "sums are compared from the prompt's beginning, also where decode had it",
        MEMORY,
        "Stretch(len(request.lease), own,",
        "Stretch(0, own,",
        f"{CORE}/decode/test_cache.py",
    ),
    Mutant(
        "a room that comes late catches up on what others had before",
        "daemons/prefill/peer_lane.py",
        "min(self._served.values(), default=0)",
        "0",
        f"{CORE}/prefill/test_peer_lane.py",
    ),
    Mutant(
        "unsent bytes stay in the kernel",
        "daemons/transfer/sockets.py",
        'struct.pack("@ii", 1, 0)',
        'struct.pack("@ii", 0, 0)',
        f"{CORE}/transfer/test_sockets.py",
    ),
    Mutant(
        "a page outside of the pool is written",
        "daemons/prefill/decodes.py",
        "if pages and max(pages) >= buffers.pages:",
        "if False:",
        f"{CORE}/prefill/test_decodes.py",
    ),
    Mutant(
        "a page that is read is evicted",
        LEDGER,
        "        if was is Owner.CACHED and index in self._readers:\n",
        "        if False:\n",
        f"{CORE}/kv/test_ledger.py",
    ),
    Mutant(
        "a page that is read may be had",
        LEDGER,
        "return self.free + self._counts[Owner.CACHED] - self.read",
        "return self.free + self._counts[Owner.CACHED]",
        SEEDS,
    ),
    Mutant(
        "what is read may go when pages are wanted",
        TREE,
        "return node.page >= 0 and not self._pages.readers(node.page)",
        "return node.page >= 0",
        SEEDS,
    ),
    Mutant(
        "a reader is forgotten",
        TREE,
        "            self._pages.read_by(key, node.page)\n",
        "            len(lease.nodes) or self._pages.read_by(key, node.page)\n",
        SEEDS,
    ),
    Mutant(
        "a page is found by its own tokens alone",
        TREE,
        "return tuple(text[at * self._page_size : (at + 1) * self._page_size])",
        "return (hash(tuple(text[at * self._page_size : (at + 1) * self._page_size])) % 3,)",
        SEEDS,
    ),
    Mutant(
        "salts meet",
        TREE,
        "node = Lease(), self._root.children.get((salt,))",
        'node = Lease(), self._root.children.get(("",))',
        SEEDS,
    ),
    Mutant(
        "a page whose last token is not written is kept",
        "daemons/decode/cache.py",
        "*request.output[:-1])  # the newest is not written",
        "*request.output)",
        SEEDS,
    ),
    Mutant(
        "what is copied back is kept before it is there",
        DECODE_ENDS,
        'whole = self.recorder.stage(key) in ("prebuilt", "running")',
        "whole = bool(request.output)",
        f"{CORE}/decode/test_cache.py",
    ),
    Mutant(
        "the prefix is counted twice",
        "daemons/decode/outbox.py",
        "tuple(request.pages[cached:])",
        "tuple(request.pages)",
        SEEDS,
    ),
    Mutant(
        "what was read is said to be computed",
        "daemons/prefill/cache.py",
        "request.computed = request.cached_tokens = len(lease) * self.page_size",
        "request.computed = request.cached_tokens = (len(lease) + 1) * self.page_size",
        SEEDS,
    ),
    Mutant(
        "a room in transfer is not counted as reading",
        "daemons/decode/budget.py",
        "return counts[Owner.WRITER] + counts[Owner.QUARANTINED] + self.fixed_reads",
        "return counts[Owner.WRITER] + counts[Owner.QUARANTINED]",
        SEEDS,
    ),
    Mutant(
        "pages that several rooms read count once where rooms may leave",
        "daemons/decode/budget.py",
        "shared = self.reads - self.pages.read if self.host_pages else 0",
        "shared = 0",
        f"{CORE}/decode/test_budget.py",
    ),
    Mutant(
        "pages are cached before their writer is done",
        MEMORY,
        "        self.cache.end(request)\n        key, window",
        "        key, window",
        SEEDS,
    ),
    Mutant(
        "a window page is used again while it is still seen",
        TABLE,
        "spare.append(self.pages[turned])",
        "spare.append(self.pages[-1 - turned])",
        SEEDS,
    ),
    Mutant(
        "a window page that is only read is used again",
        TABLE,
        "if self.pages[turned] not in self.read:",
        "if True:",
        f"{CORE}/kv/test_window_table.py",
    ),
    Mutant(
        "window pages of a failed room are free at once",
        MEMORY,
        "held = Held(request.peer, request.pages, request.row, failure, now, window=window)",
        "held = Held(request.peer, request.pages, request.row, failure, now)\n"
        "        self.window.release(key, window, Owner.WRITER)",
        SEEDS,
    ),
    Mutant(
        "window pages go with the pages that the host keeps",
        RETRACTION,
        "            self.memory.cache.release(request)\n            self.recorder.note(",
        "            self.memory.end(request, keep=False)\n            self.recorder.note(",
        SEEDS,
    ),
    Mutant(
        "a window page too few is offered",
        "daemons/decode/outbox.py",
        "request.window.pages,",
        "request.window.pages[1:],",
        SEEDS,
    ),
    Mutant(
        "a wrong number of window pages is taken",
        "daemons/prefill/decodes.py",
        "if len(offered) != need or len(set(offered)) != need:",
        "if False:",
        f"{CORE}/prefill/test_decodes.py",
    ),
    Mutant(
        "a window page outside of the pool is written",
        "daemons/prefill/decodes.py",
        "if offered and max(offered) >= size:",
        "if False:",
        f"{CORE}/prefill/test_decodes.py",
    ),
    Mutant(
        "a prefix is gone on from whose window pages have gone",
        WINDOWS,
        "best = depth if lacking < self._first_seen(depth) else best",
        "best = depth",
        SEEDS,
    ),
    Mutant(
        "a window page that is read may go",
        WINDOWS,
        "return is_latest and not self._pages.readers(node.window)",
        "return is_latest",
        f"{CORE}/kv/test_window_cache.py",
    ),
    Mutant(
        "a prompt that decode computes begins where only full layers are cached",
        "daemons/decode/cache.py",
        "if not self.on or (self.in_part and request.local):",
        "if not self.on:",
        SEEDS,
    ),
    Mutant(
        "prefill's window pages are free before they are sent",
        "daemons/prefill/cache.py",
        "                self.beside.keep(key, lease, request.window)",
        "                self.window.release(key, request.window.own, Owner.REQUEST)\n"
        "                request.window.spare = ()",
        SEEDS,
    ),
    Mutant(
        "the copier writes to whom it has not looked at",
        COPIER,
        "if (!is_as_found(*peer)) return UNLIKE;",
        "",
        f"{COPIER_TEST}::test_a_peer_with_another_notice_gets_nothing",
    ),
    Mutant(
        "the copier does not look between calls",
        COPIER,
        "if (moved && moved + part_bytes > call_bytes) {",
        "if (false) {",
        f"{COPIER_TEST}::test_between_calls_the_notice_is_looked_at",
    ),
    Mutant(
        "the copier does not look after the last call",
        COPIER,
        "return look_again(*peer, closed);",
        "return DONE;",
        f"{COPIER_TEST}::test_after_the_last_call_the_notice_is_looked_at",
    ),
    Mutant(
        "the copier takes a dead peer's notice for its life",
        COPIER,
        "return ready != 0;",
        "return false;",
        f"{COPIER_TEST}::test_a_peer_that_ends_under_a_write_is_seen",
    ),
    Mutant(
        "the copier's streamed stores are not fenced",
        COPIER,
        "if (streamed) fence();",
        "",
        f"{COPIER_TEST}::test_what_is_streamed_is_fenced",
    ),
    Mutant(
        "the copier goes a byte past a region",
        COPIER,
        "return end <= in.ends[index] ? index : 0;",
        "return end <= in.ends[index] + 1 ? index : 0;",
        f"{COPIER_TEST}::test_what_no_comb_is_moves_nothing",
    ),
    Mutant(
        "the copier is tried for as long as a peer shows something new",
        CMA,
        "for _ in range(TRIES):",
        "while True:",
        f"{CORE}/transfer/test_cma.py::test_a_peer_that_shows_something_new_each_time_holds_nobody_up",
    ),
    Mutant(
        "a write that had begun ends as if nothing was sent",
        CMA,
        "look = self._look_again",
        "pass",
        f"{CORE}/transfer/test_cma.py"
        "::test_a_peer_that_closes_after_some_was_written_is_a_cut_and_not_gone",
    ),
)

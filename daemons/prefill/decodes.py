"""The decodes that registered here: what of their memory we may write, and checks against it.

Everything is checked before any address is computed, and a refusal shows both values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.kv.runs import pages_for
from daemons.kv.window_pool import NO_POOL, WindowPool
from daemons.protocol.generate import prompt_digest
from daemons.protocol.handshake import Destination, KvRegion, RegisterBuffers
from daemons.protocol.ids import PeerId
from daemons.protocol.metadata import ROW_BYTES
from daemons.protocol.topology import Fingerprint, differences

ADDRESS_LIMIT = 2**63  # copy plans count in signed 64 bits


@dataclass(slots=True)
class Decodes:
    """Registered peers, checked against our own shape."""

    fingerprint: Fingerprint
    regions: Sequence[KvRegion]
    known: dict[PeerId, RegisterBuffers] = field(default_factory=dict)
    window: WindowPool = NO_POOL  # ours

    def refusal(self, buffers: RegisterBuffers) -> str:
        """Return why these buffers cannot be written by us, "" when they can."""
        wrong = differences(self.fingerprint, buffers.fingerprint)
        if wrong:
            return "; ".join(wrong)
        if buffers.row_bytes != ROW_BYTES:
            return f"row_bytes: ours {ROW_BYTES}, theirs {buffers.row_bytes}"
        if bool(buffers.window_pages) is not bool(self.window):
            return f"window_pages: ours {self.window.pages}, theirs {buffers.window_pages}"
        ends = [
            r.address
            + r.page_bytes * (buffers.window_pages if self.window.has(r.layer) else buffers.pages)
            for r in buffers.regions
        ]
        ends.append(buffers.rows_address + buffers.rows * buffers.row_bytes)
        if max(ends) > ADDRESS_LIMIT:
            return f"memory up to {max(ends):#x}, addresses end at {ADDRESS_LIMIT:#x}"
        ours = {(r.layer, r.kind, r.head): r.page_bytes for r in self.regions}
        theirs = {(r.layer, r.kind, r.head): r.page_bytes for r in buffers.regions}
        if len(theirs) != len(buffers.regions):
            return f"{len(buffers.regions)} regions, {len(theirs)} of them different"
        shared = ours.keys() & theirs.keys()
        if not shared:
            return "no layer and head in common"
        for place in sorted(shared):
            if ours[place] != theirs[place]:
                return f"page_bytes at {place}: ours {ours[place]}, theirs {theirs[place]}"
        return ""

    def bad_destination(self, destination: Destination, prompt: Sequence[int]) -> str:
        """Return what is wrong with where a room shall go, "" when nothing is."""
        buffers = self.known.get(destination.sender)
        if buffers is None:
            return f"{destination.sender} has not registered its buffers"
        page_size = self.fingerprint.page_size
        prompt_tokens, digest = len(prompt), prompt_digest(prompt)
        if destination.prompt_tokens != prompt_tokens:
            return f"prompt tokens: ours {prompt_tokens}, theirs {destination.prompt_tokens}"
        if destination.prompt_digest != digest:
            return f"prompt: ours has digest {digest}, theirs {destination.prompt_digest}"
        if destination.prefix_tokens % page_size or destination.prefix_tokens > prompt_tokens:
            return f"prefix of {destination.prefix_tokens} tokens, pages have {page_size}"
        need = pages_for(prompt_tokens, page_size) - destination.prefix_tokens // page_size
        pages = destination.pages
        if len(pages) != need or len(set(pages)) != need:
            return f"{len(set(pages))} pages offered, {need} needed"
        if pages and max(pages) >= buffers.pages:
            return f"page {max(pages)} of {buffers.pages}"
        if destination.row >= buffers.rows:
            return f"row {destination.row} of {buffers.rows}"
        return self._bad_window(destination.window_pages, prompt_tokens, buffers.window_pages)

    def _bad_window(self, offered: Sequence[int], prompt_tokens: int, size: int) -> str:
        need = 0
        if self.window:
            all_pages = pages_for(prompt_tokens, self.fingerprint.page_size)
            need = all_pages - self.window.first_needed(prompt_tokens)
        if len(offered) != need or len(set(offered)) != need:
            return f"{len(set(offered))} window pages offered, {need} needed"
        if offered and max(offered) >= size:
            return f"window page {max(offered)} of {size}"
        return ""

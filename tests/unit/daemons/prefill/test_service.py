from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from daemons.engine.progress import Progress
from daemons.prefill.commands import WriteKV
from daemons.prefill.config import PrefillConfig
from daemons.prefill.decodes import Decodes
from daemons.prefill.events import WriteSkipped
from daemons.prefill.scheduler import Scheduler
from daemons.prefill.service import Shell
from daemons.protocol.ids import PeerId, RoomKey
from daemons.protocol.topology import Fingerprint
from daemons.rank.equipment import Equipment
from daemons.runtime.commands import Disconnect
from daemons.runtime.reactor import Wake
from daemons.runtime.row_memory import RowMemory

ME, D0 = PeerId("p0", 7), PeerId("d0", 3)
KEY = RoomKey(9, 1)


def shell() -> Shell:
    engine = SimpleNamespace(kv_regions=tuple, pages=4, progress=Progress(1), page_size=16)
    equipment = SimpleNamespace(
        me=ME,
        engine=engine,
        steps=engine,
        wake=Wake(),
        backend=SimpleNamespace(),
        rows=RowMemory(1),
        clock=lambda: 1.0,
    )
    decodes = Decodes(Fingerprint("m", "fp32", 16, 1, 1, 1), [])
    core = Scheduler(ME, PrefillConfig(), decodes, 4)
    return Shell(cast(Equipment, equipment), core)


def test_a_write_to_a_decode_that_is_gone_comes_back_as_skipped() -> None:
    made = shell()
    assert made.execute(WriteKV(KEY, D0, (), ())) == WriteSkipped(KEY)
    made.observe(WriteSkipped(KEY))
    assert made.execute(Disconnect(D0)) is None


def test_a_command_that_nobody_knows_is_our_own_defect() -> None:
    with pytest.raises(AssertionError, match="nobody carries out"):
        shell().execute("dance")

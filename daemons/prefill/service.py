"""The prefill rank's shell: joins the core with engine, backend, sockets and lanes."""

from __future__ import annotations

from daemons.cluster.load import read_settings
from daemons.engine.step import Begin, End, Prepare, Run
from daemons.kv.window_pool import WindowPool
from daemons.prefill.chunk_sums import ChunkSums
from daemons.prefill.commands import CallOffWrites, LearnBuffers, WriteKV
from daemons.prefill.config import PrefillConfig
from daemons.prefill.decodes import Decodes
from daemons.prefill.memory import window_rooms
from daemons.prefill.scheduler import Scheduler
from daemons.prefill.write_lanes import Source, WriteLanes
from daemons.protocol.generate import Ask, Chaos
from daemons.protocol.topology import Role
from daemons.rank.equipment import Equipment, equip
from daemons.rank.forward_lane import ForwardLane
from daemons.rank.report import Report
from daemons.runtime.commands import Disconnect
from daemons.runtime.worker import Flags
from daemons.transfer.sums import PageSums


class Shell:
    """Carries out what only prefill does."""

    def __init__(self, equipment: Equipment, core: Scheduler) -> None:
        engine = equipment.engine
        self._report = Report(equipment, core)
        self._forward = ForwardLane(equipment.steps, equipment.wake, engine.progress)
        regions = engine.kv_regions()
        window = core.decodes.window
        sums = ChunkSums(PageSums(regions, engine.pages, window), core.config.transfer.checksum)
        in_flight_bytes = core.config.transfer.in_flight_bytes
        self._writes = WriteLanes(
            equipment.backend,
            Source(
                regions,
                engine.pages,
                equipment.rows,
                engine.progress,
                sums,
                in_flight_bytes,
                window,
            ),
            equipment.wake.post,
            self._report.wrote,
        )
        self._report.wires = self._writes.tally.wires

    def execute(self, command: object) -> object | None:
        """Carry out a command; a write to a decode that is gone ends at once."""
        match command:
            case Prepare() | Begin() | Run() | End():
                self._forward.execute(command)
            case WriteKV():
                return self._writes.write(command)
            case CallOffWrites():
                self._writes.call_off(command.key)
            case LearnBuffers():
                self._writes.learn(command.peer, command.buffers)
            case Disconnect():
                self._writes.forget(command.peer)
            case _:
                raise AssertionError(f"nobody carries out {command}")
        return None

    def observe(self, event: object) -> None:
        """See each event before the core does."""
        self._writes.settled(event)

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        """Return the body of a snapshot."""
        return self._report.answer(ask, now)


def run_rank(flags: Flags) -> int:
    """Run one prefill rank until its front says stop."""
    config = read_settings(flags.file.cluster, flags.instance, PrefillConfig)
    equipment = equip(flags, Role.PREFILL, config, window_rooms(config.engine))
    engine = equipment.engine
    window = WindowPool(engine.windows, engine.window_pages)
    decodes = Decodes(engine.fingerprint, engine.kv_regions(), window=window)
    core = Scheduler(flags.me, config, decodes, engine.pages)
    shell = Shell(equipment, core)
    return equipment.run(core, shell)

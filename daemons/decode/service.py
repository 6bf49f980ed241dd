"""The decode rank's shell: joins the core with engine, backend, sockets and lanes."""

from __future__ import annotations

from daemons.cluster.load import read_settings
from daemons.decode.commands import ReadRow, VerifySums, ZeroRow
from daemons.decode.config import DecodeConfig
from daemons.decode.events import Retract, RowRead, SumsVerified
from daemons.decode.memory import window_rooms
from daemons.decode.scheduler import Scheduler
from daemons.engine.step import Begin, End, Keep, Prepare, Restore, Run
from daemons.kv.window_pool import WindowPool
from daemons.protocol.generate import Ask, Chaos
from daemons.protocol.handshake import RegisterBuffers
from daemons.protocol.metadata import ROW_BYTES, unpack
from daemons.protocol.topology import Role
from daemons.rank.equipment import Equipment, equip
from daemons.rank.forward_lane import ForwardLane
from daemons.rank.report import Report
from daemons.runtime.commands import Disconnect
from daemons.runtime.lanes import Job, Lane
from daemons.runtime.worker import Flags
from daemons.transfer.sums import PageSums


class Shell:
    """Carries out what only decode does."""

    def __init__(self, equipment: Equipment, core: Scheduler) -> None:
        engine, self._rows = equipment.engine, equipment.rows
        self._report = Report(equipment, core)
        self._forward = ForwardLane(equipment.steps, equipment.wake)
        self._verify = Lane("verify", equipment.wake.post)
        self._pages = PageSums(engine.kv_regions(), engine.pages, core.memory.pool)

    def execute(self, command: object) -> object | None:
        """Carry out a command; a look at a row is answered at once."""
        match command:
            case Prepare() | Begin() | Run() | End() | Keep() | Restore():
                self._forward.execute(command)
            case ZeroRow():
                self._rows.zero(command.row)
            case ReadRow():
                return RowRead(command.key, *unpack(self._rows.read(command.row), command.key))
            case VerifySums():
                self._verify.submit(
                    Job(
                        lambda: SumsVerified(
                            command.key,
                            self._pages.difference(command.offered, command.sums, command.tokens),
                        ),
                        lambda why: SumsVerified(command.key, why),
                    )
                )
            case Disconnect():
                pass
            case _:
                raise AssertionError(f"nobody carries out {command}")
        return None

    def observe(self, event: object) -> None:
        """See each event before the core does; nothing is kept here."""

    def answer(self, ask: Ask | Chaos, now: float) -> dict[str, object]:
        """Return the body of a snapshot."""
        return self._report.answer(ask, now)


def buffers_of(equipment: Equipment, config: DecodeConfig) -> RegisterBuffers:
    """Return our memory as prefills are told of it; the epoch it is for is filled in later."""
    engine = equipment.engine
    return RegisterBuffers(
        sender=equipment.me,
        to_epoch=1,
        reply_host=equipment.host,
        reply_port=equipment.mailbox.port,
        session=equipment.backend.session,
        fingerprint=engine.fingerprint,
        pages=engine.pages,
        regions=engine.kv_regions(),
        rows_address=equipment.rows.address,
        row_bytes=ROW_BYTES,
        rows=config.rows,
        window_pages=engine.window_pages,
    )


def run_rank(flags: Flags) -> int:
    """Run one decode rank until its front says stop."""
    config = read_settings(flags.file.cluster, flags.instance, DecodeConfig)
    equipment = equip(flags, Role.DECODE, config, window_rooms(config.engine))
    buffers = buffers_of(equipment, config)
    engine = equipment.engine
    pool = WindowPool(engine.windows, engine.window_pages)
    core = Scheduler(flags.me, config, buffers, engine.pages, pool)
    shell = Shell(equipment, core)
    return equipment.run(core, shell, Retract)

"""The compiled copier moves what numpy moves, checks what is checked there, and looks as often."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.cluster.compiled import COMPILERS, OPTIONS
from daemons.transfer.backend import Comb, Copy, CopyTable, Region, table
from daemons.transfer.deaths import Life
from daemons.transfer.memory import Registered
from daemons.transfer.native import mover as module
from daemons.transfer.native.mover import Laid, Moved, Mover, Target, mover
from tests.support.native import copier, library

BYTES = 1 << 18  # of each side: more than what is kept in the caches
FAR = 1 << 40  # from what the neighbour calls a byte to where it is here


# What another processor's copier is made of, and one that stops at what C++ does not define.
BUILDS = {
    "avx": ("-mno-avx512f",),
    "sse2": ("-mno-avx",),
    "no vectors": ("-U__AVX512F__", "-U__AVX__", "-U__SSE2__"),
    "checked": ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
}


def array(length: int, value: int = 0) -> np.ndarray:
    """Return memory that begins with a cache line, and whose last page is followed by none."""
    pages = -(-length // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    raw = np.frombuffer(memory, dtype=np.uint8)
    first = raw.ctypes.data
    for edge in (first, first + (pages + 1) * mmap.PAGESIZE):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(edge), mmap.PAGESIZE, 0) == 0
    raw[mmap.PAGESIZE : mmap.PAGESIZE + length] = value
    return raw[mmap.PAGESIZE : mmap.PAGESIZE + length]


HALVES = (Region(FAR, BYTES // 2), Region(FAR + BYTES // 2, BYTES // 2))


@dataclass
class Sides:
    """Memory of ours, and a neighbour's that lies in this process too."""

    life: int
    here: np.ndarray = field(default_factory=lambda: array(BYTES))
    there: np.ndarray = field(default_factory=lambda: array(BYTES))
    notice: np.ndarray = field(default_factory=lambda: array(40, 9))
    closed: np.ndarray = field(default_factory=lambda: array(4))
    regions: tuple[Region, ...] = HALVES
    places: tuple[int | None, ...] = (0, BYTES // 2)  # of regions in ``there``; None: not mapped
    mover: Mover = field(default_factory=copier)

    def __post_init__(self) -> None:
        self.here[:] = np.random.default_rng(1).integers(1, 256, BYTES, dtype=np.uint8)

    def move(self, copies: CopyTable, call_bytes: int = 1 << 20, found: bytes = b"") -> int:
        """Write copies; addresses are offsets into both sides."""
        ours, theirs = Registered(), Registered()
        ours.add([Region(self.here.ctypes.data, BYTES)])
        theirs.add(self.regions)
        base = self.there.ctypes.data
        shifts = [
            0 if place is None else base + place - region.address
            for region, place in zip(self.regions, self.places, strict=True)
        ]
        page = found or self.notice.tobytes()
        target = Target(Laid(theirs, np.array(shifts)), self.notice.ctypes.data, page, self.life)
        closed = self.closed.ctypes.data
        return self.mover.move(self.placed(copies), Laid(ours), target, closed, call_bytes)

    def placed(self, copies: CopyTable) -> CopyTable:
        """Return copies of offsets as copies of addresses."""
        base = self.here.ctypes.data
        if copies.combs is None:
            return CopyTable(copies.source + base, copies.target + FAR, copies.bytes)
        return CopyTable.of(
            comb._replace(source=comb.source + base, target=comb.target + FAR)
            for comb in copies.combs
        )


@pytest.fixture(scope="module")
def life() -> Life:
    """Our own process, which does not end."""
    return Life(os.getpid())


@pytest.fixture
def sides(life: Life) -> Sides:
    return Sides(life.file)


@pytest.fixture(scope="module", params=["ours", *BUILDS])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mover:
    """A copier, by what it is made of."""
    ours = copier()
    if request.param == "ours":
        return ours
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    path = tmp_path_factory.mktemp("copier") / "copier.so"
    source = module.COPIER.folder / module.COPIER.main
    command = [compiler, *OPTIONS, *BUILDS[request.param], str(source), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no such copier can be built here: {done.stderr.strip()}")
    return Mover(path)


def expected(here: np.ndarray, copies: Sequence[Copy]) -> np.ndarray:
    there = np.zeros(BYTES, dtype=np.uint8)
    for source, target, length in copies:
        there[target : target + length] = here[source : source + length]
    return there


def copies_of(comb: Comb) -> list[Copy]:
    return [
        Copy(comb.source + i * comb.source_step, comb.target + i * comb.target_step, comb.length)
        for i in range(comb.teeth)
    ]


@st.composite
def some_combs(draw: st.DrawFn) -> list[Comb]:
    """Return combs whose targets lie behind each other, in the first half of the region."""
    found, at = [], 0
    unit = draw(st.sampled_from([1, 8, 64]))  # of lengths and places
    for _ in range(draw(st.integers(1, 4))):
        teeth = draw(st.integers(1, 9))
        most = (BYTES // 2 - at) // teeth // unit
        if most < 2:
            break
        length = unit * draw(st.integers(1, min(most, 40_000 // unit)))
        gap = unit * draw(st.integers(0, min(3, most - length // unit)))
        step = unit * draw(st.integers(0, (BYTES - length) // max(1, teeth - 1) // unit))
        first = draw(st.integers(0, BYTES - length - (teeth - 1) * step))
        backwards = draw(st.booleans())
        last = at + (teeth - 1) * (length + gap)
        found.append(
            Comb(first + (teeth - 1) * step, last, length, teeth, -step, -length - gap)
            if backwards
            else Comb(first, at, length, teeth, step, length + gap)
        )
        at += teeth * (length + gap)
    return found


@settings(deadline=None)
@given(some_combs(), st.sampled_from([1, 5000, 100_000, 1 << 20]))
def test_every_byte_lands_where_it_belongs_and_no_other_is_touched(
    life: Life, build: Mover, combs: list[Comb], call_bytes: int
) -> None:
    single = [copy for comb in combs for copy in copies_of(comb)]
    for copies in (CopyTable.of(combs), table(single)):
        sides = Sides(life.file, mover=build)
        assert sides.move(copies, call_bytes) == Moved.DONE
        assert np.array_equal(sides.there, expected(sides.here, single))


@pytest.mark.parametrize("teeth", range(1, 10))
@pytest.mark.parametrize("length", [64, 128, 192, 4096, 16384, 20544])
@pytest.mark.parametrize("shift", [0, 1, 63, 64])
def test_what_is_streamed_is_whole_at_each_end(
    sides: Sides, teeth: int, length: int, shift: int
) -> None:
    comb = Comb(3, shift, length, teeth, 100, length)
    aside = Comb(0, BYTES // 2, BYTES // 2, 1)  # enough bytes to be streamed
    if comb.bytes + shift <= BYTES // 2:
        assert sides.move(CopyTable.of([comb, aside])) == Moved.DONE
        both = [*copies_of(comb), *copies_of(aside)]
        assert np.array_equal(sides.there, expected(sides.here, both))


@pytest.mark.parametrize("gap", [1, 16, 63, 64])
@pytest.mark.parametrize("length", [64, 192, 4096])
def test_whole_lines_that_no_line_begins_with_are_streamed_all_the_same(
    sides: Sides, build: Mover, length: int, gap: int
) -> None:
    sides.mover = build
    comb = Comb(0, 0, length, 9, length, length + gap)
    aside = Comb(0, BYTES // 2, BYTES // 2, 1)
    assert sides.move(CopyTable.of([comb, aside])) == Moved.DONE
    assert np.array_equal(sides.there, expected(sides.here, [*copies_of(comb), *copies_of(aside)]))


def test_single_pieces_on_both_sides_of_a_border_go_to_their_own_regions(sides: Sides) -> None:
    sides.regions = Region(FAR, 4096), Region(FAR + 4096, 4096)
    sides.places = 0, 12288
    assert sides.move(table([Copy(at, at, 64) for at in range(0, 8192, 64)])) == Moved.DONE
    assert np.array_equal(sides.there[:4096], sides.here[:4096])
    assert np.array_equal(sides.there[12288:16384], sides.here[4096:8192])
    assert not sides.there[4096:12288].any()


@pytest.mark.parametrize("odd", [1, 3, 5])
@pytest.mark.parametrize("field", Copy._fields)
def test_a_single_piece_that_is_not_like_the_others_goes_where_it_belongs(
    sides: Sides, field: str, odd: int
) -> None:
    copies = [Copy(at, at, 64) for at in range(0, 1200, 200)]
    copies[odd] = copies[odd]._replace(**{field: getattr(copies[odd], field) + 7})
    assert sides.move(table(copies)) == Moved.DONE
    assert np.array_equal(sides.there, expected(sides.here, copies))


edges = st.sampled_from(
    [-(1 << 63), -BYTES, -1, 0, 1, BYTES // 2 - 1, BYTES // 2, BYTES, (1 << 63) - 1]
)


@settings(deadline=None)
@given(edges, edges, st.integers(-2, 200_000), st.integers(0, 5), edges, edges)
def test_what_leaves_a_region_is_a_stray_as_the_tables_of_memory_say(
    life: Life, build: Mover, source: int, target: int, length: int, teeth: int, of: int, to: int
) -> None:
    sides = Sides(life.file, mover=build)
    ours, theirs = Registered(), Registered()
    ours.add([Region(0x1000, BYTES)])
    theirs.add([Region(0x1000, BYTES // 2), Region(0x1000 + BYTES // 2, BYTES // 2)])
    known = length > 0 and teeth > 0
    known = known and ours.region_of(0x1000 + source, length, teeth, of) >= 0
    known = known and theirs.region_of(0x1000 + target, length, teeth, to) >= 0
    moved = sides.move(CopyTable.of([Comb(source, target, length, teeth, of, to)]))
    assert moved == (Moved.DONE if known else Moved.STRAY)
    if not known:
        assert not sides.there.any()


@pytest.mark.parametrize("side", ["source_step", "target_step"])
@pytest.mark.parametrize(
    "comb",
    [
        Comb(64, 64, 0, 1),
        Comb(64, 64, -64, 1),
        Comb(64, 64, 64, 0),
        Comb(64, 64, 64, -1),
        Comb(64, 64, 64, 3, (1 << 63) - 1, (1 << 63) - 1),  # in 64 bits the last one is at 62
        Comb(64, 64, 64, 5, 1 << 62, 1 << 62),  # at 64
        Comb(64, 64, 64, (1 << 62) + 1, 4, 4),
        Comb(64, BYTES // 2 - 63, 64, 1),  # a byte past a region, into the next one
        Comb(64, BYTES // 2 - 1, 64, 1),
        Comb(64, BYTES // 2 - 1, 64, 2, -64, -64),  # only the second one is inside
    ],
)
def test_what_no_comb_is_moves_nothing(sides: Sides, comb: Comb, side: str) -> None:
    one_side = comb._replace(**{side: 0})
    assert sides.move(CopyTable.of([Comb(0, 0, 64, 1), one_side])) == Moved.STRAY
    assert not sides.there.any()


@pytest.mark.parametrize("step", [(1 << 63) - 1, -(1 << 63)])
def test_the_step_of_a_single_piece_is_any_number(sides: Sides, build: Mover, step: int) -> None:
    sides.mover = build
    combs = [Comb(at, at, 64, 1, step, step) for at in (0, 64, 300)]
    assert sides.move(CopyTable.of(combs)) == Moved.DONE
    assert np.array_equal(
        sides.there, expected(sides.here, [c for x in combs for c in copies_of(x)])
    )


def test_a_region_that_is_not_mapped_takes_nothing(sides: Sides) -> None:
    sides.places = 0, None
    combs = [Comb(0, 0, 64, 1), Comb(0, BYTES // 2, 64, 1)]
    assert sides.move(CopyTable.of(combs)) == Moved.STRAY
    assert not sides.there.any()


def test_a_peer_with_another_notice_gets_nothing(sides: Sides) -> None:
    assert sides.move(CopyTable.of([Comb(0, 0, 64, 1)]), found=b"\x09\x08") == Moved.UNLIKE
    assert not sides.there.any()


def test_a_peer_that_has_ended_gets_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        life = Life(process.pid)
        sides = Sides(life.file)
        copies = CopyTable.of([Comb(0, 0, 64, 1)])
        assert sides.move(copies) == Moved.DONE
        sides.there[:] = 0
        process.kill()
    assert sides.move(copies) == Moved.UNLIKE
    assert not sides.there.any()


@pytest.mark.parametrize("call_bytes", [1, 1 << 20])  # before the second piece; after the last one
def test_a_peer_that_ends_under_a_write_is_seen(sides: Sides, call_bytes: int) -> None:
    """The first piece overwrites whose life is looked at, with one that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        ended = Life(process.pid)
    ours, theirs = Registered(), Registered()
    ours.add([Region(sides.here.ctypes.data, BYTES)])
    notice, length = sides.notice, ctypes.sizeof(module._Neighbour)
    theirs.add([Region(FAR, length), Region(FAR + length, BYTES)])
    shifts = np.zeros(2, dtype=np.int64)
    laid = Laid(theirs, shifts)
    target = Target(laid, notice.ctypes.data, notice.tobytes(), sides.life)
    laid._kept[2][1:] = target.address - FAR, sides.there.ctypes.data - FAR - length
    other = type(target.struct).from_buffer_copy(target.struct)
    other.life = ended.file
    sides.here[:length] = np.frombuffer(bytes(other), dtype=np.uint8)
    base = sides.here.ctypes.data
    copies = CopyTable.of(
        [Comb(base, FAR, length, 1), Comb(base + 4096, FAR + length, BYTES - 4096, 1)]
    )
    closed = sides.closed.ctypes.data
    assert sides.mover.move(copies, Laid(ours), target, closed, call_bytes) == Moved.CHANGED
    assert sides.there.any() == (call_bytes > 1)


def test_signals_are_not_taken_for_the_peers_end(sides: Sides) -> None:
    """Only this clock has them fall into a look; pytest's own has it back afterwards."""
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    others = signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        answers = {sides.move(CopyTable.of([Comb(0, 0, 64, 1)])) for _ in range(10_000)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *others)
    assert answers == {Moved.DONE}


def test_what_is_streamed_is_fenced() -> None:
    """No run shows it: a store past the caches is hardly ever seen after the next one."""
    if platform.machine() != "x86_64" or shutil.which("objdump") is None:
        pytest.skip("no objdump of x86")
    copier()
    words = ["objdump", "-d", str(module.COPIER.path())]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "movnt" in told
    assert "sfence" in told


@pytest.mark.parametrize("length", [1000, 24_000])  # of pieces in the caches, and past them
def test_between_calls_the_notice_is_looked_at(sides: Sides, length: int) -> None:
    """The first piece overwrites the notice, so the second look finds another one."""
    sides.notice = sides.there[:40]
    sides.notice[:] = 9
    comb = Comb(0, 0, length, 5, length, length)
    assert sides.move(CopyTable.of([comb]), call_bytes=2 * length) == Moved.CHANGED
    assert sides.there[: 2 * length].all()
    assert not sides.there[2 * length :].any()


def test_after_the_last_call_the_notice_is_looked_at(sides: Sides) -> None:
    sides.notice = sides.there[:40]
    sides.notice[:] = 9
    assert sides.move(CopyTable.of([Comb(0, 0, 1000, 5, 1000, 1000)])) == Moved.CHANGED
    assert sides.there[:5000].all()


def test_a_write_ends_at_its_next_call_when_we_close(sides: Sides) -> None:
    sides.closed = sides.there[:4]
    comb = Comb(0, 0, 1000, 5, 1000, 1000)
    assert sides.move(CopyTable.of([comb]), call_bytes=2000) == Moved.CLOSED
    assert sides.there[:2000].all()
    assert not sides.there[2000:].any()


def test_a_piece_longer_than_a_call_is_a_call_of_its_own(sides: Sides) -> None:
    sides.closed = sides.there[:4]
    combs = [Comb(0, 0, 5000, 1), Comb(0, 5000, 5000, 1)]
    assert sides.move(CopyTable.of(combs), call_bytes=100) == Moved.CLOSED
    assert sides.there[:5000].all()
    assert not sides.there[5000:].any()


def test_nothing_is_moved_for_no_copies(sides: Sides) -> None:
    assert sides.move(CopyTable.of([])) == Moved.DONE
    assert not sides.there.any()


@pytest.fixture
def _forgotten() -> object:
    mover.cache_clear()
    yield
    mover.cache_clear()


@pytest.mark.usefixtures("_forgotten")
def test_where_it_was_not_built_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert mover() is None


@pytest.mark.usefixtures("_forgotten")
def test_a_file_that_is_no_library_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = module.COPIER.path()
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    assert mover() is None
    with pytest.raises(OSError, match=r"invalid ELF|too short"):
        Mover(path)


@pytest.mark.usefixtures("_forgotten")
def test_a_cache_that_is_not_ours_to_read_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", forbidden)
    assert mover() is None


def test_a_library_with_other_structs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    copier()

    class Other(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int64),)

    monkeypatch.setattr(module, "_Neighbour", Other)
    with pytest.raises(OSError, match="of another version"):
        Mover(module.COPIER.path())


def test_a_library_without_the_function_is_refused() -> None:
    with pytest.raises(OSError, match="pd_move"):
        Mover(Path(library().calls._name))

"""The rules of the house that a machine can hold; their exceptions are tables in DESIGN.md."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from daemons.cluster.load import instance_names, load, settings_of
from pdctl.places import settings

ROOT = Path(__file__).resolve().parents[2]
DESIGN = (ROOT / "DESIGN.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LONG = 400  # lines
SOURCES = sorted(
    path.relative_to(ROOT) for top in ("daemons", "pdctl") for path in (ROOT / top).rglob("*.py")
)
CONFIG_MODULES = sorted(
    {path for path in SOURCES if path.name == "config.py" and path.parts[0] == "daemons"}
    - {Path("daemons/front/config.py")}  # handed over by the shells, nobody writes it
    | {Path("daemons/cluster/worker.py"), Path("daemons/cluster/model.py")}
)
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


def excused(heading: str) -> dict[str, str]:
    """Return the first two columns of the table of DESIGN.md with this heading."""
    _, _, rest = DESIGN.partition(f"| {heading} | reason |\n|---|---|\n")
    rows = [row for row in rest.partition("\n\n")[0].splitlines() if row.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name.strip("`"): reason for name, reason in cells}


def lines_of(path: Path) -> list[str]:
    return (ROOT / path).read_text().splitlines()


def test_there_are_sources_examples_and_settings_to_look_at() -> None:
    assert len(SOURCES) > 50
    assert len(CONFIG_MODULES) == 8
    assert {path.name for path in EXAMPLES} >= {"one-host.yaml", "two-hosts-tcp.yaml"}


@pytest.mark.parametrize("name", ["pdctl", "pd-bootstrap", "pd-prefill", "pd-decode", "pd-lb"])
def test_a_console_script_leads_to_a_function(name: str) -> None:
    module, _, function = PROJECT["scripts"][name].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all files of the wheel, built once."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--wheel-dir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("folder", ["systemd", "configs"])
def test_the_wheel_carries_what_operators_need(folder: str, wheel_names: set[str]) -> None:
    wanted = {f"pdctl/share/{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
    assert wanted
    assert wanted <= wheel_names


def test_the_wheel_carries_every_source_and_schema(wheel_names: set[str]) -> None:
    schemas = {str(path.relative_to(ROOT)) for path in (ROOT / "pdctl/schemas").iterdir()}
    assert {str(path) for path in SOURCES} | schemas <= wheel_names


def test_the_wheel_carries_the_licence_and_no_tests(wheel_names: set[str]) -> None:
    assert [name for name in wheel_names if name.endswith("licenses/LICENSE")]
    assert not [name for name in wheel_names if name.startswith(("tests/", "scripts/"))]


def test_every_source_file_has_a_test_file_of_the_mirrored_name() -> None:
    reasons = excused("source file without a mirrored test")
    wanting = []
    for source in SOURCES:
        mirrored = Path("tests/unit") / source.parent / f"test_{source.name}"
        if source.name == "__init__.py" and not defines_something(source):
            continue
        if not (ROOT / mirrored).exists() and str(source) not in reasons:
            wanting.append(str(mirrored))
    assert wanting == []


def test_no_exception_from_mirrored_tests_has_become_needless() -> None:
    for name in excused("source file without a mirrored test"):
        source = Path(name)
        assert (ROOT / source).exists(), name
        assert not (ROOT / "tests/unit" / source.parent / f"test_{source.name}").exists(), name


def test_a_long_module_has_its_reason_in_the_design() -> None:
    long = {str(path) for path in SOURCES if len(lines_of(path)) > LONG}
    assert long == set(excused("module over 400 lines"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_and_every_daemon_of_it_takes_its_settings(path: Path) -> None:
    cluster = load(path).cluster
    assert cluster.prefill
    assert cluster.decode
    for name in instance_names(cluster):
        settings(cluster, name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_at_its_top_what_it_is_and_how_it_runs(path: Path) -> None:
    head = path.read_text().partition("name:")[0]
    assert head.startswith("# ")
    assert "pdctl up" in head


def test_the_first_example_comments_every_setting_that_it_shows() -> None:
    first = ROOT / "configs/one-host.yaml"
    settings_lines = [
        line for line in first.read_text().splitlines() if re.match(r"\s+\w+: \S", line)
    ]
    bare = [line.strip() for line in settings_lines if "#" not in line]
    assert [line for line in bare if not re.match(r"(host|port):", line)] == []
    assert settings_of(load(first).cluster, "p0")[0]["engine"]["threads"] == 1


@pytest.mark.parametrize("path", CONFIG_MODULES, ids=str)
def test_every_setting_is_documented_where_it_is_defined(path: Path) -> None:
    assert list(undocumented(path)) == []


@pytest.mark.parametrize("path", CONFIG_MODULES, ids=str)
def test_settings_are_frozen_and_refuse_unknown_names(path: Path) -> None:
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    for struct in vars(module).values():
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
            config = struct.__struct_config__
            assert config.frozen, struct
            assert config.forbid_unknown_fields, struct


def test_no_file_names_a_path_of_the_machine_that_wrote_it() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = tracked.stdout.split("\0") if tracked.returncode == 0 else map(str, SOURCES)
    pattern = re.compile(r"/(work|root|home/\w+)/|/shared/")
    found = []
    for name in filter(None, names):
        path = ROOT / name
        if path.is_file() and path != Path(__file__).resolve():
            text = path.read_bytes().decode(errors="replace")
            found += [f"{name}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "name", ["install", "demo", "test", "lint", "check", "simulate", "fuzz", "faults"]
)
def test_a_script_is_runnable_and_says_what_it_does(name: str) -> None:
    path = ROOT / "scripts" / name
    assert path.stat().st_mode & 0o111
    first, second = path.read_text().splitlines()[:2]
    assert first == "#!/usr/bin/env bash"
    assert second.startswith("# ")
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_every_module_begins_with_what_it_is() -> None:
    silent = [str(path) for path in SOURCES if not ast.get_docstring(parsed(path))]
    assert silent == []


def test_nothing_inherits_but_what_a_library_asks_for() -> None:
    found = {
        f"{path}: {node.name}({ast.unparse(base)})"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if not is_a_librarys(base)
    }
    assert found == set()


def test_numbers_of_decisions_run_without_a_gap() -> None:
    numbers = [int(number) for number in re.findall(r"^(?:~~)?(\d+)\. ", DESIGN, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


ALLOWED_BASES = {
    "Struct", "Protocol", "NamedTuple", "StrEnum", "IntEnum", "TypedDict", "Generic",
    "Module", "Extension", "Structure",
}  # fmt: skip


def is_a_librarys(base: ast.expr) -> bool:
    name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
    builtin = getattr(builtins, name, None)
    is_error = isinstance(builtin, type) and issubclass(builtin, Exception)
    return is_error or name.rpartition(".")[2] in ALLOWED_BASES


def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def defines_something(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in parsed(path).body)


def undocumented(path: Path) -> Iterator[str]:
    """Yield fields that have neither comment nor docstring, nor a word in their class's one."""
    text = lines_of(path)
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        for index, field in enumerate(node.body):
            if not isinstance(field, ast.AnnAssign):
                continue
            own = "\n".join(text[field.lineno - 2 : field.end_lineno])
            after = node.body[index + 1] if index + 1 < len(node.body) else None
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            name = ast.unparse(field.target)
            is_told |= re.search(rf"\b{name}\b", ast.get_docstring(node) or "") is not None
            if "#" not in own and not is_told and not is_section(field):
                yield f"{node.name}.{name}"


def is_section(field: ast.AnnAssign) -> bool:
    """A field whose type is itself a class of settings says enough by its name."""
    return ast.unparse(field.annotation) in (
        "EngineConfig", "TransferConfig", "Timers", "Settings", "dict[InstanceName, Settings]",
    )  # fmt: skip

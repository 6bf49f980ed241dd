"""Makes docs/SETTINGS.md: ``python -m tests.support.settings_table > docs/SETTINGS.md``.

Each setting is a field of a ``config.py`` with its default, and the comment beside it or above it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKERS = ", of all workers, or of one"
SECTIONS = (
    ("Top level", "daemons/cluster/model.py", "Cluster"),
    ("`hosts.<name>`", "daemons/cluster/model.py", "Host"),
    ("`bootstrap`", "daemons/bootstrap/config.py", "BootstrapConfig"),
    ("`lb`", "daemons/lb/config.py", "LbConfig"),
    ("`lb.static_workers[]`", "daemons/lb/config.py", "StaticWorker"),
    ("`prefill.<name>`", "daemons/prefill/config.py", "PrefillConfig"),
    ("`decode.<name>`", "daemons/decode/config.py", "DecodeConfig"),
    (f"`engine`{WORKERS}", "daemons/engine/config.py", "EngineConfig"),
    (f"`transfer`{WORKERS}", "daemons/transfer/config.py", "TransferConfig"),
    (f"`timers`{WORKERS}", "daemons/cluster/worker.py", "Timers"),
    ("`placement`, of one worker", "daemons/cluster/worker.py", "Placement"),
)
HEAD = """# Settings of a cluster file

Made from the code by `python -m tests.support.settings_table`, and held to it by a test. Unknown
names are refused: `pdctl config check` checks a file, and `pdctl config view --origin` shows each
effective value and where it came from.
"""
TABLE = "| setting | default | values | |\n|---|---|---|---|\n"


def render() -> str:
    """Return the document."""
    parts = [HEAD]
    for title, path, name in SECTIONS:
        parts.append(f"\n## {title}\n\n{TABLE}")
        for field, default, values, about in fields(ROOT / path, name):
            shown = f"`{default}`" if default else "required"
            parts.append(f"| `{field}` | {shown} | {values} | {about} |\n")
    return "".join(parts)


def fields(path: Path, name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, default ("": none), choices and comment of each field of a struct."""
    text = path.read_text()
    lines = text.splitlines()
    (struct,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    for node in struct.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value is not None else ""
            about = _comment(lines, node).replace("|", "\\|")
            yield node.target.id, default, _choices(node.annotation), about


def _choices(annotation: ast.expr) -> str:
    """Return the values of a ``Literal[...]``, wherever it stands in an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            chosen = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return ", ".join(str(ast.literal_eval(one)) for one in chosen)
    return ""


def _comment(lines: list[str], node: ast.AnnAssign) -> str:
    assert node.end_lineno is not None
    beside = [line.partition("  # ")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
    above: list[str] = []
    row = node.lineno - 2
    while lines[row].strip().startswith("# "):
        above.insert(0, lines[row].strip()[2:])
        row -= 1
    return " ".join([*above, *filter(None, beside)])


if __name__ == "__main__":
    print(render(), end="")

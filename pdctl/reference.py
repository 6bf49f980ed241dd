"""The command reference, made from the commands themselves: ``python -m pdctl.reference``.

``docs/CLI.md`` is its output, and a test holds the two together.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from pdctl.app import app
from pdctl.errors import EXIT_CODES_HELP

HEAD = """# pdctl, every command

Made from the commands by `python -m pdctl.reference`; change their help, not this file. What the
screens mean and what to do when: [`OPERATIONS.md`](OPERATIONS.md). JSON forms: `pdctl/schemas/`.
"""
EXAMPLE = "Example: "


def commands(command: Any = None, path: tuple[str, ...] = ("pdctl",)) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its full name, in the order of the help."""
    command = command or typer.main.get_command(app)
    children = getattr(command, "commands", None)
    if not children or command.invoke_without_command:
        yield " ".join(path), command
    for name, child in (children or {}).items():
        yield from commands(child, (*path, name))


def reference() -> str:
    """Return the whole text."""
    parts = [HEAD, f"\n{EXIT_CODES_HELP}\n"]
    for name, command in commands():
        parts.append(_section(name, command))
    return "".join(parts)


def example_of(command: Any) -> str:
    """Return the example in a command's help, "" when it has none."""
    lines = inspect.cleandoc(command.help or "").splitlines()
    return next((line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)), "")


def _section(name: str, command: Any) -> str:
    words = [
        line
        for line in inspect.cleandoc(command.help or "").splitlines()
        if not line.startswith(EXAMPLE)
    ]
    about = " ".join(line for line in words if line).replace("|", "\\|")
    usage = " ".join([name, *(_argument(p) for p in command.params if _is_argument(p))])
    lines = [f"\n## {name}\n", f"{about}\n", "```", f"{usage} [OPTIONS]", example_of(command)]
    lines = [*filter(None, lines), "```\n", "| | | |", "|---|---|---|"]
    lines += [_row(param) for param in command.params if param.name != "help"]
    return "\n".join(lines) + "\n"


def _is_argument(param: Any) -> bool:
    return str(param.param_type_name) == "argument"


def _argument(param: Any) -> str:
    shown = (param.metavar or param.name).strip("{}[]").upper()
    return shown if param.required else f"[{shown}]"


def _row(param: Any) -> str:
    if _is_argument(param):
        spelled = f"`{_argument(param)}`"
    else:
        spelled = ", ".join(f"`{word}`" for word in (*param.opts, *param.secondary_opts))
    value = getattr(param.default, "value", param.default)
    default = "" if _is_unsaid(value) else f"`{value}`"
    return f"| {spelled} | {(param.help or '').replace('|', '/')} | {default} |"


def _is_unsaid(default: Any) -> bool:
    return default in (None, False, "") or callable(default) or repr(default).startswith("Sentinel")


if __name__ == "__main__":
    print(reference(), end="")

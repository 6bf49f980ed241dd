"""Entry point of ``pdctl``: runs a verb and turns every error into two lines and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import typer

from daemons.cluster.errors import OperatorError
from pdctl.app import app
from pdctl.errors import CommandError, Exit

STOPPED_BY_SIGINT = 128 + signal.SIGINT  # what shells expect
WATCH_DEFAULT_S = "2"

# typer carries click under names of its own in some versions; both have this parent.
ClickError = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run pdctl with the arguments of this process and end it."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one verb; returns its exit code."""
    debug = "--debug" in arguments
    try:
        return _call([_spelled_out(word) for word in arguments if word != "--debug"])
    except BrokenPipeError:
        # The reader of our output has left (``pdctl logs | head``); say nothing more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except KeyboardInterrupt:
        return STOPPED_BY_SIGINT
    except Exception as error:  # outermost: told in two lines
        if debug:
            raise
        return _tell(error)


def _call(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    code = command.main(args=arguments, prog_name="pdctl", standalone_mode=False)
    return code if isinstance(code, int) else Exit.OK


def _spelled_out(word: str) -> str:
    """Give ``--watch`` its value, which typer does not let an option leave out."""
    return f"--watch={WATCH_DEFAULT_S}" if word == "--watch" else word


def _tell(error: Exception) -> int:
    if isinstance(error, typer.Abort):
        return STOPPED_BY_SIGINT
    if isinstance(error, CommandError):
        what, hint, code = error.what, error.hint, int(error.code)
    elif isinstance(error, OperatorError):
        what, hint, code = error.what, error.hint, int(Exit.BAD_CONFIG)
    elif isinstance(error, ClickError):
        what, hint, code = _usage(error)
    else:
        what = f"{type(error).__name__}: {error}"
        hint, code = "this is a defect of pdctl; --debug shows where", int(Exit.FAILED)
    print(f"pdctl: {what}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


def _usage(error: Exception) -> tuple[str, str, int]:
    format_message = getattr(error, "format_message", None)
    what = format_message() if callable(format_message) else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pdctl"
    return what, f"{path} --help", int(Exit.USAGE)


if __name__ == "__main__":
    main()

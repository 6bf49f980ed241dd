"""``pdctl completion``: the script by which a shell completes our words, printed or installed.

It is typer's own, as ``--show-completion`` prints it; this verb also makes it for a shell that it
does not run in, as who builds an image wants.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from pdctl.errors import CommandError, Exit
from pdctl.render import say

NAME = "pdctl"
VARIABLE = "_PDCTL_COMPLETE"  # by which the script asks us for words


class Shell(StrEnum):
    """Those that typer has scripts for, of this system."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell | None, typer.Argument(help="Which shell; without it $SHELL.")] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Put it where the shell reads it, for this user.")
    ] = False,
) -> int:
    """Print the script that lets a shell complete verbs, options, instances and rooms.

    Example: pdctl completion bash --install
    """
    # The only place where typer keeps them; its public options know the present shell alone.
    from typer import _completion_shared as scripts

    name = shell or _present()
    if not install:
        print(scripts.get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=name))
        return Exit.OK
    try:
        _, path = scripts.install(name, NAME, VARIABLE)
    except OSError as error:
        raise CommandError(
            f"cannot write {error.filename}: {error.strerror}", f"pdctl completion {name} prints it"
        ) from error
    say(f"{path} is read by every new {name}")
    return Exit.OK


def _present() -> Shell:
    """Return the user's shell."""
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in tuple(Shell):
        raise CommandError(
            f"no completion for {name or 'an unknown shell'}",
            f"pdctl completion {'|'.join(Shell)}",
            code=Exit.USAGE,
        )
    return Shell(name)

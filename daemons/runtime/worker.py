"""The command line of pd-prefill and pd-decode: the same flags start a front or, inside, a rank."""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons.cluster.errors import OperatorError
from daemons.cluster.load import ClusterFile, load, with_setting
from daemons.protocol.ids import PeerId
from daemons.runtime.program import EXIT_BAD_CONFIG, EXIT_FAILED

NO_PREFIX_CACHE = "--no-prefix-cache"


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says; ``link`` is there only in a rank.

    ``handed_on`` are the words that a front says to its ranks as they were said to it; ``file`` is
    already as if it said so.
    """

    file: ClusterFile
    instance: str
    rank: int
    epoch: int
    link: str | None
    handed_on: tuple[str, ...] = ()

    @property
    def me(self) -> PeerId:
        """The name of this rank process in this life."""
        return PeerId(self.instance, self.epoch, self.rank)


def run(
    program: str, about: str, serve: Callable[[Flags], int], argv: Sequence[str] | None = None
) -> int:
    """Read flags and cluster file, run ``serve``, and return the exit code."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="cluster file")
    parser.add_argument("--instance", required=True, metavar="NAME", help="its name in that file")
    parser.add_argument(
        NO_PREFIX_CACHE, action="store_true", help="compute and send every prompt from its start"
    )
    for inner in ("--rank", "--epoch"):
        parser.add_argument(inner, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--link", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    use_all_descriptors()
    try:
        file, handed_on = load(given.config), list[str]()
        if given.no_prefix_cache:
            file = with_setting(file, given.instance, "prefix_cache", value=False)
            handed_on.append(NO_PREFIX_CACHE)
        return serve(
            Flags(file, given.instance, given.rank, given.epoch, given.link, tuple(handed_on))
        )
    except OperatorError as error:
        print(f"{program}: {error.what}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except OSError as error:  # most of all: the address is taken
        print(f"{program}: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED


def use_all_descriptors() -> int:
    """Raise the soft limit of open files to the hard one, and return it.

    A rank needs a few descriptors for each peer, and the usual soft limit of 1024 is for programs
    that still use select.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard

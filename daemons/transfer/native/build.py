"""The copier as a library that is compiled for the machine it runs on."""

from __future__ import annotations

from pathlib import Path

from daemons.cluster.compiled import Compiled

COPIER = Compiled(
    Path(__file__).parent,
    "move.cpp",
    "the copier",
    "without it numpy copies between processes of a host, which is slower; with g++ 11 or newer"
    " it is built",
)

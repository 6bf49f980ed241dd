"""The kernels as a library that is compiled for the machine they run on."""

from __future__ import annotations

from pathlib import Path

from daemons.cluster.compiled import Compiled

KERNELS = Compiled(
    Path(__file__).parent,
    "library.cpp",
    "the kernels",
    "without the kernels torch is used, which is slower; with g++ 11 or newer it is built",
)

"""The kernels' C interface in Python's words: structs field by field, functions, and their life.

A struct here is the one of the same name in ``decoder.h``, ``attention.h`` or ``sample.h``; sizes
are compared when the library is opened.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from pathlib import Path

from daemons.cluster.errors import OperatorError

ROPES = 4  # the most different rotations of one model


class Cache(c.Structure):
    """Where one layer's keys and values lie."""

    _fields_ = [
        ("base", c.c_void_p),
        ("pages", c.c_int64),
        ("page_size", c.c_int32),
        ("kv_heads", c.c_int32),
        ("head_dim", c.c_int32),
        ("windowed", c.c_int32),  # pages are those of the batch's window tables
    ]


class Rule(c.Structure):
    """What a layer's queries see; 0 for no window, no soft-cap."""

    _fields_ = [("window", c.c_int32), ("scale", c.c_float), ("softcap", c.c_float)]


class Batch(c.Structure):
    """Addresses of a batch's rows, items and page tables."""

    _fields_ = [
        ("ids", c.c_void_p),
        ("positions", c.c_void_p),
        ("spans", c.c_void_p),
        ("window_spans", c.c_void_p),  # None: no layer has pages of its own
        ("pages", c.c_void_p),
        ("tokens", c.c_int32),
        ("span_count", c.c_int32),
        ("layers_done", c.c_void_p),  # raised as layers are written; None: nobody looks
    ]


class Layer(c.Structure):
    """Addresses of one layer's weights; None where it has none."""

    _fields_ = [
        ("before_attention", c.c_void_p),
        ("after_attention", c.c_void_p),
        ("before_mlp", c.c_void_p),
        ("after_mlp", c.c_void_p),
        ("query_norm", c.c_void_p),
        ("key_norm", c.c_void_p),
        ("qkv", c.c_void_p),
        ("out", c.c_void_p),
        ("gate_up", c.c_void_p),
        ("down", c.c_void_p),
        ("rope", c.c_int32),
        ("window", c.c_int32),
        ("scale", c.c_float),
        ("softcap", c.c_float),
    ]


class Model(c.Structure):
    """Addresses and sizes of a model."""

    _fields_ = [
        ("layers", c.POINTER(Layer)),
        ("norm", c.c_void_p),
        ("head", c.c_void_p),
        ("embedding", c.c_void_p),
        ("angles", c.c_void_p * ROPES),
        ("amplitudes", c.c_float * ROPES),
        ("layer_count", c.c_int32),
        ("ropes", c.c_int32),
        ("hidden", c.c_int32),
        ("heads", c.c_int32),
        ("kv_heads", c.c_int32),
        ("head_dim", c.c_int32),
        ("middle", c.c_int32),
        ("vocabulary", c.c_int32),
        ("is_bf16", c.c_int32),
        ("is_gelu", c.c_int32),
        ("eps", c.c_float),
        ("embedding_scale", c.c_float),
        ("logits_softcap", c.c_float),
    ]


class Wish(c.Structure):
    """What a room wants of its row of logits; None and 0 where it wants nothing."""

    _fields_ = [
        ("said", c.c_void_p),
        ("counts", c.c_void_p),
        ("biased", c.c_void_p),
        ("biases", c.c_void_p),
        ("allowed", c.c_void_p),
        ("ends", c.c_void_p),
        ("temperature", c.c_double),
        ("top_p", c.c_double),
        ("min_p", c.c_double),
        ("share", c.c_double),
        ("repetition", c.c_float),
        ("frequency", c.c_float),
        ("presence", c.c_float),
        ("said_count", c.c_int32),
        ("biased_count", c.c_int32),
        ("ends_count", c.c_int32),
        ("top_k", c.c_int32),
        ("token", c.c_int32),  # -1: to be chosen
        ("logs", c.c_int32),
        ("tops", c.c_int32),
    ]


class Drawn(c.Structure):
    """What a room got."""

    _fields_ = [
        ("log", c.c_double),
        ("token", c.c_int32),
        ("fault", c.c_int32),
        ("tops", c.c_int32),
    ]


_ADDRESS, _INT, _LONG = c.c_void_p, c.c_int32, c.c_int64
# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "pd_layer_bytes": (_INT, []),
    "pd_model_bytes": (_INT, []),
    "pd_cache_bytes": (_INT, []),
    "pd_batch_bytes": (_INT, []),
    "pd_wish_bytes": (_INT, []),
    "pd_team_new": (_ADDRESS, [_INT, _ADDRESS]),
    "pd_team_free": (None, [_ADDRESS]),
    "pd_read": (c.c_uint32, [_ADDRESS, _ADDRESS, _LONG, _INT]),
    "pd_workspace_new": (_ADDRESS, [_INT]),
    "pd_workspace_free": (None, [_ADDRESS]),
    "pd_matrix_new": (_ADDRESS, [_INT, _ADDRESS, _ADDRESS, _INT, _INT, _INT]),
    "pd_rounded_new": (_ADDRESS, [_INT, _INT, *[_ADDRESS] * 4, _INT, _INT, _INT]),
    "pd_matrix_free": (None, [_ADDRESS]),
    "pd_forward": (c.c_char_p, [_ADDRESS] * 6),
    "pd_logits": (c.c_char_p, [_ADDRESS] * 5 + [_INT, _ADDRESS]),
    "pd_likeliest": (c.c_char_p, [_ADDRESS] * 5 + [_INT, _ADDRESS]),
    "pd_attend": (
        c.c_char_p,
        [_ADDRESS] * 5 + [_INT, _INT, _ADDRESS, _LONG, _ADDRESS, _LONG, _ADDRESS],
    ),
    "pd_sampler_new": (_ADDRESS, [_INT, _INT]),
    "pd_sampler_free": (None, [_ADDRESS]),
    "pd_sample": (None, [_ADDRESS] * 3 + [_INT, _ADDRESS, _ADDRESS, _INT, _ADDRESS, _ADDRESS]),
}


class Library:
    """The functions of a built library."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OperatorError: it cannot be loaded, or is of another version.
        """
        try:
            self.calls = c.CDLL(str(path))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(self.calls, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise OperatorError(f"cannot load the kernels: {error}", f"remove {path}") from error
        structs = {"layer": Layer, "model": Model, "cache": Cache, "batch": Batch, "wish": Wish}
        found = {name: getattr(self.calls, f"pd_{name}_bytes")() for name in structs}
        if found != {name: c.sizeof(struct) for name, struct in structs.items()}:
            raise OperatorError(f"{path} is of another version", "remove it")


class Team:
    """Threads that run the kernels, with the memory they work in; one caller at a time."""

    def __init__(self, library: Library, members: int, cores: Sequence[int] = ()) -> None:
        """Start the threads; the caller of a kernel is one of them.

        Args:
            library: whose kernels.
            members: how many threads, at least 1.
            cores: a core for each member; none to run anywhere. The first member is whoever calls,
                and is not moved.

        Raises:
            OperatorError: no thread can be started.
        """
        self.library = library
        self.members = members
        others = (c.c_int32 * len(cores))(*cores[1:]) if len(cores) == members else None
        self.address = library.calls.pd_team_new(members, others)
        self.space = library.calls.pd_workspace_new(members)
        if not self.address or not self.space:
            raise OperatorError(f"cannot start {members} threads", "lower engine.threads")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self.library.calls.pd_team_free(self.address)
        if getattr(self, "space", None):
            self.library.calls.pd_workspace_free(self.space)


def checked(fault: bytes | None) -> None:
    """Raise what a kernel said.

    Raises:
        MemoryError: it lacked memory, the only thing that a checked call can lack.
    """
    if fault:
        raise MemoryError(fault.decode())

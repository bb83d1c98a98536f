"""How the kernel is compiled: as everything in HAS, with three differences.

- No reference counts. The kernel allocates nothing and hands no array out; counting references to its
  two arrays at every call would be most of the time of a run (an atomic increment each).
- No checks of divisors: none is ever zero.
- The copy on disk is kept by the state of *all* compiled sources. numba looks at the caller's file
  alone, so that after an update of has/policy a kernel with the old policy in it would run on.

numba's switches for the first and the last are not public; where a version lacks them, the kernel is
the same, slower, and to be cleared by hand (`make clean`) after such an update.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Callable[..., Any] = numba.njit  # its stubs do not know `_nrt`
_OPTIONS = {"cache": True, "error_model": "numpy"}
_FLOORS = ("policy", "latency", "sim")


def _state_of_sources() -> tuple[float, int]:
    """(latest change, size in all) of the files that compiled functions come from."""
    house = Path(__file__).parents[1]
    files = [file.stat() for floor in _FLOORS for file in (house / floor).glob("*.py")]
    return max((s.st_mtime for s in files), default=0.0), sum(s.st_size for s in files)


_STAMP = _state_of_sources()


def compiled(function: F) -> F:
    """`function`, compiled on first call and kept on disk."""
    try:
        dispatcher = _njit(**_OPTIONS, _nrt=False)(function)
    except KeyError:
        dispatcher = _njit(**_OPTIONS)(function)
    file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = _STAMP
    return cast(F, dispatcher)


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether a compiled form of `function` is at hand, in memory or on disk."""
    if getattr(function, "signatures", None):
        return True
    file = getattr(getattr(function, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    return bool(load is not None and load())

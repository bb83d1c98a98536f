"""How the kernel is compiled: `entry` for what Python calls, `compiled` for what only the kernel calls.

As everything in HAS, with these differences:

- No reference counts. The kernel allocates nothing and hands no array out; counting references to its
  two arrays at every call would be most of the time of a run (an atomic increment each).
- No checks of divisors: none is ever zero.
- Inside, blocks of memory are pointers (`address_of`).
- Only entries get a wrapper for Python and a copy on disk, with all that they call inside it. They let
  go of the interpreter's lock: trials that are simulated side by side take a core each.
- That copy is kept by the state of *all* compiled sources. numba looks at the caller's file alone, so
  that after an update of has/policy a kernel with the old policy in it would run on.

numba's switches for the first and the last are not public; where a version lacks them, the kernel is
the same, slower, and to be cleared by hand (`make clean`) after such an update.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

_njit: Callable[..., Any] = numba.njit  # its stubs do not know all of its options
_FLOORS = ("policy", "latency", "sim")


def _state_of_sources() -> tuple[float, int]:
    """(latest change, size in all) of the files that compiled functions come from."""
    house = Path(__file__).parents[1]
    files = [file.stat() for floor in _FLOORS for file in (house / floor).glob("*.py")]
    return max((s.st_mtime for s in files), default=0.0), sum(s.st_size for s in files)


_STAMP = _state_of_sources()


def compiled(function: F) -> F:
    """`function`, for compiled callers only."""
    return _compile(function, cache=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def entry(function: F) -> F:
    """`function`, compiled on first call and kept on disk."""
    dispatcher = _compile(function, cache=True, nogil=True)
    file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = _STAMP
    return dispatcher


def _compile(function: F, **options: bool) -> F:
    try:
        return cast(F, _njit(error_model="numpy", _nrt=False, **options)(function))
    except KeyError:  # an option that this numba does not know
        return cast(F, _njit(error_model="numpy", cache=options["cache"])(function))


def _address_of(typing: Any, array: Any) -> Any:
    pointer: Any = types.CPointer(array.dtype)  # type: ignore[no-untyped-call]  # numba has no types here

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return pointer(array), generate


def _behind(typing: Any, pointer: Any, by: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, by), generate


address_of: Callable[[Any], Any] = cast(Any, intrinsic(_address_of))
"""Pointer to the first element of an array: indexed like the array, without its size and strides.

An array is seven arguments in every call and every index of it is asked whether it is negative; a
pointer is one, and is not. That alone makes the kernel half as fast again."""

behind: Callable[[Any, int], Any] = cast(Any, intrinsic(_behind))
"""The pointer that many elements further on."""


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether a compiled form of `function` is at hand, in memory or on disk."""
    if getattr(function, "signatures", None):
        return True
    file = getattr(getattr(function, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    return bool(load is not None and load())

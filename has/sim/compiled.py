"""How the kernel is compiled: as everything in HAS, but without reference counts and division checks.

The kernel allocates nothing and hands no array out, so counting references to its two arrays at every
call would be pure cost: an atomic increment each, most of the time of a run. numba's switch for it is
not public; where a version lacks it, the kernel is the same and slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Callable[..., Any] = numba.njit  # its stubs do not know `_nrt`
_OPTIONS = {"cache": True, "error_model": "numpy"}


def compiled(function: F) -> F:
    try:
        return cast(F, _njit(**_OPTIONS, _nrt=False)(function))
    except KeyError:
        return cast(F, _njit(**_OPTIONS)(function))

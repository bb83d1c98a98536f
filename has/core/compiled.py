"""The one way functions are compiled here: numba, nopython, cached on disk, no fast-math, no jitclass.

Import this only from modules of numerical functions: it loads numba, and `import has` must not.
numba's cache of a caller does not notice that a *callee in another file* changed; after editing a
compiled function, remove `__pycache__` (`make clean`) before trusting callers elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`function`, compiled on first call for the types it is given. Integers are int64 and wrap: bound them."""
    return cast(F, numba.njit(cache=True)(function))

"""Prune, then propose, try and learn: from a profile and a workload to a deployment with its evidence.

`has.search(...)` is the function of the library and `has.search` also this package: importing any part
of it binds the package over the function. So the package is callable, and both names stay true.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from has.search.run import search

        return search(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
